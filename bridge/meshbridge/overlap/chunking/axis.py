"""Rows of values: along which dimension of each operand and result of an operation they run, by its sharding rule.

A dimension of rows is `outer` stretches, each of which is divided into as many pieces: a piece of what an all-gather gives along
the dimension that it gathers is a piece of every shard. An operation works on a piece as on all rows if the pieces of what it
reads and gives are those of one of its loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.ops import OPERATION_NAMES
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.elements import neutral, resized
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import REDUCE
from meshbridge.ops.einsum import DOT
from meshbridge.ops.rule import Dims, Interface, ShardingRule
from meshbridge.ops.spmd import SPMD_LOWERINGS
from meshbridge.ops.traits import Trait, ops_with

_SIZES = {"stablehlo.slice": "limit_indices", "stablehlo.dynamic_slice": "slice_sizes"}
"""Attributes that hold the size of every dimension, of operations that read all of a dimension of rows."""
_ONLY_TYPES = ops_with(Trait.STRIDED) | {"stablehlo.concatenate", REDUCE}
"""Operations that have an SPMD lowering, of which nothing but types changes along dimensions that they do not cut."""
_SUMMING = frozenset((DOT, REDUCE))


@dataclass(frozen=True)
class Rows:
    """The dimension of a value that rows run along."""

    dim: int
    outer: int = 1
    "How many stretches of it have a share of every piece."


@dataclass(frozen=True)
class Carried:
    """The rows of an operation's operands and results; None of those that have nothing for each row."""

    operands: tuple[Rows | None, ...]
    results: tuple[Rows | None, ...]
    summed: str = ""
    "How what is computed of pieces is joined to a result that has no rows, by the name of a reduction."


def carry(interface: Interface, op: ir.Operation, value: ir.Value, rows: Rows, pieces: int) -> Carried | None:
    """How `op` works on so many pieces of its operand or result `value`; None where pieces of rows are not all that it needs."""
    if op.name in OPERATION_NAMES and (moved := _moved(op, value, rows, pieces)) is not None:
        return moved
    rule = interface.rule(op)
    if not rule.has_rule or not _keeps_attributes(op):
        return None
    sides = list(zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True))
    own = next(dims for each, dims in sides if each == value)
    found = _stretch(own[rows.dim], rows.outer, rule, pieces)
    if found is None or any(exchange.loop == found[0] for exchange in rule.exchanges):
        return None
    loop, outer = found
    if not all(_covers(each, dims, rule, loop) for each, dims in sides):
        return None
    operands = tuple(_along(dims, loop, outer, rule) for dims in rule.operands)
    results = tuple(_along(dims, loop, outer, rule) for dims in rule.results)
    return _summed(op, rule.loops[loop].reduction, operands, results)


def _summed(op: ir.Operation, kind: str, operands: tuple[Rows | None, ...], results: tuple[Rows | None, ...]) -> Carried | None:
    if not kind:
        return Carried(operands, results) if None not in results else None
    if op.name not in _SUMMING or len(results) > 1 or results[0] is not None:
        return None
    starts = op.operands[1] if op.name == REDUCE else None
    if starts is not None and not is_splat(starts, neutral(kind, element_of(starts))):
        return None
    return Carried(operands, results, kind)


def _moved(op: ir.Operation, value: ir.Value, rows: Rows, pieces: int) -> Carried | None:
    """Of a collective that puts shards together along rows, or takes them apart: a piece of each."""
    if len(op.operands) != 1 or len(op.results) != 1:
        return None
    before, after = (shape_of(each) for each in (op.operands[0], op.results[0]))
    if len(before) != len(after) or before[rows.dim] == after[rows.dim]:
        return None
    smaller, larger = sorted((before[rows.dim], after[rows.dim]))
    count, rest = divmod(larger, smaller)
    is_larger = shape_of(value)[rows.dim] == larger
    outer, uneven = divmod(rows.outer, count) if is_larger else (rows.outer, 0)
    if rest or uneven or smaller % (outer * pieces):
        return None
    few, many = Rows(rows.dim, outer), Rows(rows.dim, outer * count)
    return Carried((few,), (many,)) if before[rows.dim] == smaller else Carried((many,), (few,))


def _keeps_attributes(op: ir.Operation) -> bool:
    if len(op.regions) and op.name != REDUCE:
        return False
    return op.name not in SPMD_LOWERINGS or op.name in _ONLY_TYPES or op.name in _SIZES


def _covers(value: ir.Value, dims: Dims, rule: ShardingRule, loop: int) -> bool:
    """Whether the loop runs along one dimension of the value at the most, of which every element is an iteration."""
    along = [(size, loops) for size, loops in zip(_static_shape(value), dims, strict=False) if loop in loops]
    return len(along) < 2 and all(prod(rule.loops[each].size for each in loops) == size for size, loops in along)


def _static_shape(value: ir.Value) -> list[int]:
    return shape_of(value) if isinstance(value.type, ir.RankedTensorType) else []


def _stretch(loops: tuple[int, ...], outer: int, rule: ShardingRule, pieces: int) -> tuple[int, int] | None:
    """The loop of a dimension that pieces divide, and into how many stretches its iterations fall."""
    before = 1
    for loop in loops:
        size = rule.loops[loop].size
        if outer % before == 0 and size % (outer // before * pieces) == 0:
            return loop, outer // before
        before *= size
    return None


def _along(dims: Dims, loop: int, outer: int, rule: ShardingRule) -> Rows | None:
    """The rows of a tensor with these loops."""
    for dim, loops in enumerate(dims):
        if loop in loops:
            before = loops[: loops.index(loop)]
            return Rows(dim, outer * prod(rule.loops[each].size for each in before))
    return None


def on_piece(emit: Builder, op: ir.Operation, operands: list[ir.Value], carried: Carried, pieces: int) -> ir.Operation:
    """`op` on one piece of its operands."""
    made = op.clone(ip=emit.ip)
    for number, operand in enumerate(operands):
        made.operands[number] = operand
    for result, rows in zip(made.results, carried.results, strict=True):
        if rows is not None:
            result.set_type(resized(ir.RankedTensorType(result.type), rows.dim, divide=pieces))
    rows = carried.results[0]
    if op.name in _SIZES and rows is not None:
        sizes = [*integers(op.attributes[_SIZES[op.name]])]
        sizes[rows.dim] //= pieces
        made.attributes[_SIZES[op.name]] = integers_attr(sizes)
    return made
