"""The axis along which an operation can be computed in chunks: its dimension in each operand and result, by the sharding rule.

The axis consists of `outer` segments, each of which is divided into chunks: a chunk of an all-gather along the axis is a chunk of
every shard. An operation can be computed in chunks if the chunks of its operands and results are chunks of one of its loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.ops import OPERATION_NAMES
from meshbridge.ir.block_index import BlockOp, ValueNumbers
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.elements import neutral, resized
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import REDUCE
from meshbridge.ops.einsum import DOT
from meshbridge.ops.rule import Dims, Interface, ShardingRule, Signature, signature
from meshbridge.ops.spmd import SPMD_LOWERINGS
from meshbridge.ops.traits import Trait, ops_with

_SIZES = {"stablehlo.slice": "limit_indices", "stablehlo.dynamic_slice": "slice_sizes"}
"""By operation, the attribute with the size of every dimension; these read all of a chunked dimension."""
_ONLY_TYPES = ops_with(Trait.STRIDED) | {"stablehlo.concatenate", REDUCE}
"""Operations with an SPMD lowering of which only types change along dimensions that they do not slice."""
_SUMMING = frozenset((DOT, REDUCE))


@dataclass(frozen=True)
class ChunkAxis:
    """The dimension of a value along the chunked axis."""

    dim: int
    outer: int = 1
    "The number of its segments that have a share of every chunk."


@dataclass(frozen=True)
class ChunkedOp:
    """The chunked axis in an operation's operands and results; None in those that do not have it."""

    operands: tuple[ChunkAxis | None, ...]
    results: tuple[ChunkAxis | None, ...]
    summed: str = ""
    "The reduction that combines chunks to a result without the axis; empty if there is none."


class ChunkedOps:
    """How operations work on chunks: one computation for all that are alike."""

    def __init__(self, values: ValueNumbers, pieces: int) -> None:
        self.pieces = pieces
        self._values = values
        self._interface = Interface()
        self._kinds: dict[Signature, int] = {}
        self._kind_of: dict[int, int] = {}
        "The number of an operation's signature, by its first result."
        self._known: dict[tuple[object, ...], ChunkedOp | None] = {}

    def chunked(self, block_op: BlockOp, value: int, axis: ChunkAxis) -> ChunkedOp | None:
        """How an operation works on chunks of its operand or result `value`; None if it cannot."""
        if not block_op.results:
            return None
        key: tuple[object, ...] = (self._kind(block_op), (*block_op.operands, *block_op.results).index(value), axis)
        if block_op.name == REDUCE:
            key = (*key, block_op.operands[1])  # what the sum starts from
        if key not in self._known:
            self._known[key] = chunk_op(self._interface, block_op.op, self._values.all[value], axis, self.pieces)
        return self._known[key]

    def _kind(self, block_op: BlockOp) -> int:
        kind = self._kind_of.get(block_op.results[0])
        if kind is None:
            kind = self._kind_of[block_op.results[0]] = self._kinds.setdefault(signature(block_op.op), len(self._kinds))
        return kind


def chunk_op(interface: Interface, op: ir.Operation, value: ir.Value, axis: ChunkAxis, pieces: int) -> ChunkedOp | None:
    """How `op` works on chunks of its operand or result `value`; None if it cannot."""
    if op.name in OPERATION_NAMES and (carried_by_collective := _moved(op, value, axis, pieces)) is not None:
        return carried_by_collective
    rule = interface.rule(op)
    if not rule.has_rule or not _keeps_attributes(op):
        return None
    sides = list(zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True))
    own = next(dims for end, dims in sides if end == value)
    loop_and_outer = _stretch(own[axis.dim], axis.outer, rule, pieces)
    if loop_and_outer is None or any(exchange.loop == loop_and_outer[0] for exchange in rule.exchanges):
        return None
    loop, outer = loop_and_outer
    if not all(_covers(end, dims, rule, loop) for end, dims in sides):
        return None
    operands = tuple(_along(dims, loop, outer, rule) for dims in rule.operands)
    results = tuple(_along(dims, loop, outer, rule) for dims in rule.results)
    return _summed(op, rule.loops[loop].reduction, operands, results)


def _summed(
    op: ir.Operation, kind: str, operands: tuple[ChunkAxis | None, ...], results: tuple[ChunkAxis | None, ...]
) -> ChunkedOp | None:
    if not kind:
        return ChunkedOp(operands, results) if None not in results else None
    if op.name not in _SUMMING or len(results) > 1 or results[0] is not None:
        return None
    starts = op.operands[1] if op.name == REDUCE else None
    if starts is not None and not is_splat(starts, neutral(kind, element_of(starts))):
        return None
    return ChunkedOp(operands, results, kind)


def _moved(op: ir.Operation, value: ir.Value, axis: ChunkAxis, pieces: int) -> ChunkedOp | None:
    """The same for a collective that concatenates or splits shards along the axis."""
    if len(op.operands) != 1 or len(op.results) != 1:
        return None
    operand_shape, result_shape = (shape_of(end) for end in (op.operands[0], op.results[0]))
    if len(operand_shape) != len(result_shape) or operand_shape[axis.dim] == result_shape[axis.dim]:
        return None
    smaller, larger = sorted((operand_shape[axis.dim], result_shape[axis.dim]))
    count, remainder = divmod(larger, smaller)
    is_larger = shape_of(value)[axis.dim] == larger
    outer, uneven = divmod(axis.outer, count) if is_larger else (axis.outer, 0)
    if remainder or uneven or smaller % (outer * pieces):
        return None
    few, many = ChunkAxis(axis.dim, outer), ChunkAxis(axis.dim, outer * count)
    return ChunkedOp((few,), (many,)) if operand_shape[axis.dim] == smaller else ChunkedOp((many,), (few,))


def _keeps_attributes(op: ir.Operation) -> bool:
    if len(op.regions) and op.name != REDUCE:
        return False
    return op.name not in SPMD_LOWERINGS or op.name in _ONLY_TYPES or op.name in _SIZES


def _covers(value: ir.Value, dims: Dims, rule: ShardingRule, loop: int) -> bool:
    """True if the loop runs along at most one dimension of the value, with one element per iteration."""
    along = [(size, loops) for size, loops in zip(_static_shape(value), dims, strict=False) if loop in loops]
    return len(along) < 2 and all(prod(rule.loops[factor].size for factor in loops) == size for size, loops in along)


def _static_shape(value: ir.Value) -> list[int]:
    return shape_of(value) if isinstance(value.type, ir.RankedTensorType) else []


def _stretch(loops: tuple[int, ...], outer: int, rule: ShardingRule, pieces: int) -> tuple[int, int] | None:
    """The loop of a dimension that chunks divide, and the number of its segments."""
    major_size = 1
    for loop in loops:
        size = rule.loops[loop].size
        if outer % major_size == 0 and size % (outer // major_size * pieces) == 0:
            return loop, outer // major_size
        major_size *= size
    return None


def _along(dims: Dims, loop: int, outer: int, rule: ShardingRule) -> ChunkAxis | None:
    """The axis in a tensor with these loops."""
    for dim, loops in enumerate(dims):
        if loop in loops:
            major = loops[: loops.index(loop)]
            return ChunkAxis(dim, outer * prod(rule.loops[factor].size for factor in major))
    return None


def op_on_chunk(builder: Builder, op: ir.Operation, operands: list[ir.Value], carried: ChunkedOp, pieces: int) -> ir.Operation:
    """`op` on one chunk of its operands."""
    copy = op.clone(ip=builder.ip)
    for number, operand in enumerate(operands):
        copy.operands[number] = operand
    for result, axis in zip(copy.results, carried.results, strict=True):
        if axis is not None:
            result.set_type(resized(ir.RankedTensorType(result.type), axis.dim, divide=pieces))
    axis = carried.results[0]
    if op.name in _SIZES and axis is not None:
        sizes = [*integers(op.attributes[_SIZES[op.name]])]
        sizes[axis.dim] //= pieces
        copy.attributes[_SIZES[op.name]] = integers_attr(sizes)
    return copy
