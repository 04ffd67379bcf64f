"""Values that can be in parts along their first dimension, and ops that can be computed on each part.

%2 = stablehlo.add %0, %1 : tensor<4x8xf32>      in two parts: one add of the parts 0, one of the parts 1: tensor<2x8xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import BARRIER, ir, stablehlo
from meshbridge.ir.registry import Registry
from meshbridge.ir.uses import defining_op
from meshbridge.ops.reductions import IDEMPOTENT, body_kind, is_sum
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.stacks import Division

SLICE, CONCATENATE = "stablehlo.slice", "stablehlo.concatenate"

Group = list[ir.Value]
"""Operands and results of an op that are in parts together."""


def parts_together(op: ir.Operation) -> list[Group]:
    """The groups of operands and results that are in parts together where `op` is computed on each part."""
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(op)
    return [[value for value in (*op.operands, *op.results) if _rank(value)]] if has(op.name, Trait.ELEMENTWISE) else []


_RULES: Registry[str, Callable[[ir.Operation], list[Group]]] = Registry("parts along the first dimension")


def _rank(value: ir.Value) -> int:
    return len(shape_of(value)) if isinstance(value.type, ir.RankedTensorType) else 0


@_RULES.register(SHARD)
def _shard(op: ir.Operation) -> list[Group]:
    """The annotation holds for each part."""
    return [[op.operands[0], op.results[0]]]


@_RULES.register("stablehlo.constant")
def _constant(op: ir.Operation) -> list[Group]:
    """One number."""
    literal = op.attributes["value"]
    is_one = isinstance(literal, ir.DenseElementsAttr) and literal.is_splat
    return [[op.results[0]]] if is_one and _rank(op.results[0]) else []


@_RULES.register("stablehlo.broadcast_in_dim")
def _broadcast(op: ir.Operation) -> list[Group]:
    """The operand is in parts if it has the first dimension."""
    dims = integers(op.attributes["broadcast_dimensions"])
    operand, result = op.operands[0], op.results[0]
    has_first = 0 in dims and shape_of(operand)[list(dims).index(0)] == shape_of(result)[0]
    if not has_first:
        return [[result]]
    return [[operand, result]] if dims[0] == 0 else []


@_RULES.register("stablehlo.reshape")
def _reshape(op: ir.Operation) -> list[Group]:
    """Parts along the first dimension are rows of the elements in order, whatever the shape."""
    return [[op.operands[0], op.results[0]]] if _rank(op.operands[0]) and _rank(op.results[0]) else []


@_RULES.register("stablehlo.transpose")
def _transpose(op: ir.Operation) -> list[Group]:
    """The first dimension stays the first."""
    return [[op.operands[0], op.results[0]]] if integers(op.attributes["permutation"])[0] == 0 else []


@_RULES.register(SLICE)
def _slice(op: ir.Operation) -> list[Group]:
    """All of the first dimension."""
    operand, result = op.operands[0], op.results[0]
    return [[operand, result]] if shape_of(operand)[0] == shape_of(result)[0] else []


@_RULES.register(CONCATENATE)
def _concatenate(op: ir.Operation) -> list[Group]:
    """Of other dimensions. Along the first one, operands may be the parts (`parts_of_rows`)."""
    return [[op.results[0]]] if joins_rows(op) else [[*op.operands, op.results[0]]]


@_RULES.register("stablehlo.reduce")
def _reduce(op: ir.Operation) -> list[Group]:
    """Along other dimensions."""
    if 0 in integers(op.attributes["dimensions"]):
        return []
    return [[*list(op.operands)[: len(op.results)], *op.results]]


@_RULES.register("stablehlo.dot_general")
def _dot(op: ir.Operation) -> list[Group]:
    """The first dimensions are a batch."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    firsts = [list(dims)[:1] for dims in (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)]
    return [[*op.operands, op.results[0]]] if firsts == [[0], [0]] else []


@_RULES.register(BARRIER)
def _barrier(op: ir.Operation) -> list[Group]:
    """Each operand has a result of its own."""
    return [[operand, result] for operand, result in zip(op.operands, op.results, strict=True) if _rank(operand)]


def part_type(value: ir.Value, division: Division, part: int) -> ir.RankedTensorType:
    """The type of a part of a value."""
    first, *rest = shape_of(value)
    start, end = division.rows(part, first)
    return tensor([end - start, *rest], element_of(value))


def on_part(op: ir.Operation, operands: Iterable[ir.Value], division: Division, part: int, at: Builder) -> ir.Operation:
    """`op` on that part of its operands. What is in its regions computes with scalars."""
    created = op.clone(ip=at.ip)
    for index, operand in enumerate(operands):
        created.operands[index] = operand
    for result in created.results:
        result.set_type(part_type(result, division, part))
    if op.name == "stablehlo.constant":
        literal = ir.DenseElementsAttr(op.attributes["value"])
        created.attributes["value"] = ir.DenseElementsAttr.get_splat(created.results[0].type, literal.get_splat_value())
    if op.name == SLICE:
        _, *rest = integers(op.attributes["limit_indices"])
        created.attributes["limit_indices"] = integers_attr([shape_of(created.results[0])[0], *rest])
    return created


@dataclass(frozen=True)
class Total:
    """An op of values in parts whose result is the sum, or another combination, of its results on each part."""

    combine: str
    "The name of the op of two results."


def total_of(op: ir.Operation) -> Total | None:
    """How the results of `op` on parts of its operands, all of which are in parts, combine; None if they do not."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        pairs = zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
        return Total("stablehlo.add") if (0, 0) in pairs else None
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or 0 not in integers(op.attributes["dimensions"]):
        return None
    # The initial value counts once for each part.
    return Total(op.regions[0].blocks[0].operations[0].operation.name) if is_sum(op) or body_kind(op) in IDEMPOTENT else None


def joins_rows(op: ir.Operation) -> bool:
    """Whether an op concatenates along the first dimension."""
    return op.name == CONCATENATE and not ir.IntegerAttr(op.attributes["dimension"]).value


def parts_of_rows(op: ir.Operation, division: Division) -> list[list[ir.Value]] | None:
    """For each part of what an op concatenates along the first dimension, the operands that make it up; None for any other op,
    and where a part begins within an operand."""
    if not joins_rows(op):
        return None
    parts: list[list[ir.Value]] = [[] for _ in range(division.parts)]
    start = 0
    for operand in op.operands:
        end = start + shape_of(operand)[0]
        part = _part_with(start, end, shape_of(op.results[0])[0], division)
        if part is None:
            return None
        parts[part].append(operand)
        start = end
    return parts


def part_with_rows(op: ir.Operation, division: Division) -> int | None:
    """The number of the part that has all rows that a slice reads; None for any other op, and for rows of several parts."""
    if op.name != SLICE:
        return None
    first, limit = (integers(op.attributes[name])[0] for name in ("start_indices", "limit_indices"))
    return _part_with(first, limit, shape_of(op.operands[0])[0], division)


def _part_with(first: int, limit: int, size: int, division: Division) -> int | None:
    """The number of the part that has those rows of a dimension of that size; None for rows of several parts, and for none."""
    for part in range(division.parts):
        start, end = division.rows(part, size)
        if start <= first < limit <= end:
            return part
    return None


def slice_of_part(op: ir.Operation, part: ir.Value, offset: int, at: Builder) -> ir.Value:
    """The slice `op` of the part that begins at row `offset`."""
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (list(integers(op.attributes[name])) for name in names)
    return at.cut(part, [starts[0] - offset, *starts[1:]], [limits[0] - offset, *limits[1:]], strides)


def in_parts(
    seeds: Iterable[ir.Value],
    linked: Callable[[ir.Operation], list[Group]],
    division: Division,
    free: Container[ir.Value],
    exclude: Container[ir.Value],
) -> set[ir.Value]:
    """The values that are in parts if `seeds` are: those that are in parts together with one that is, but those in `exclude`.
    `linked` gives the groups of ops that have groups of their own; what it leaves out follows from `parts_together`. Values that
    are `free` (`free_values`) are in parts where something else is, and nothing is because of them."""
    found: set[ir.Value] = set()
    waiting = list(seeds)
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        for op in _around(value, users=value not in free):
            for group in linked(op):
                if value in group and all(division.divides(shape_of(each)[0]) and each not in exclude for each in group):
                    waiting += group
    return found


def free_values(ops: Iterable[ir.Operation]) -> set[ir.Value]:
    """The results of `ops` that are computed from constants and scalars alone, so that each reader can compute a part of them."""
    free: set[ir.Value] = set()
    for op in ops:
        groups = parts_together(op)
        if len(op.results) == 1 and len(groups) == 1 and free.issuperset(each for each in groups[0] if each != op.results[0]):
            free.add(op.results[0])
    return free


def _around(value: ir.Value, *, users: bool) -> Iterator[ir.Operation]:
    """The op that defines a value, or has it as an argument of its block, and if `users`, the ops that read it."""
    defining = defining_op(value)
    if defining is not None:
        yield defining
    elif isinstance(value.owner, ir.Block):
        yield value.owner.owner.operation
    for use in value.uses if users else ():
        user = use.owner.operation
        yield user
        if user.name == "stablehlo.return":
            assert user.parent is not None, "a terminator"
            yield user.parent.operation
