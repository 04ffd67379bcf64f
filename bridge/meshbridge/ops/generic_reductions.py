"""Reductions with a body of several ops, or of several values at once, along split dimensions.

No mesh collective knows such a body, so each device reduces its shard to one slice, the slices are gathered, and the op itself
reduces those:

    %0:2 = the body on elements 2i and 2i+1 of %shard, until one is left : tensor<16x4x…> -> tensor<1x4x…>
    %1, %2 = mesh.all_gather of both on @m mesh_axes = [0] gather_axis = 0 : … -> tensor<8x4x…>
    %3:2 = stablehlo.reduce(%1 init: %i), (%2 init: %j) across dimensions = [0]

The initial value, which need not be neutral, enters once. Neighbours are joined in order, the minor of several dimensions first:
the body must be associative, as StableHLO asks, but need not be commutative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.sharding import Axes
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.option import Option, result_sharding, tensor_split
from meshbridge.ops.reach import Shares
from meshbridge.ops.rule import Exchange, ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram, broadcast_scalar, compare, splat

Slices = list[ir.Value]
"""The values of a variadic reduction."""


def splittable_dims(op: ir.Operation) -> list[int]:
    """The dimensions that a `stablehlo.reduce` with any body reduces, major first; none if the body is not elementwise."""
    shape = shape_of(op.operands[0])
    *body, _ = op.regions[0].blocks[0].operations
    if not all(_is_scalar_op(inner.operation) for inner in body):
        return []
    return [dim for dim in sorted(integers(op.attributes["dimensions"])) if shape[dim] > 1]


def _is_scalar_op(op: ir.Operation) -> bool:
    return op.name == "stablehlo.constant" or (op.name in ELEMENTWISE and not len(op.regions))


def gathered_slices(op: ir.Operation, dims: list[int], walked: dict[int, tuple[int, ...]]) -> Iterator[Exchange]:
    """What a split of each of the reduced `dims`, walked by these loops, sends: one slice per device, in which the dimensions
    minor to it are reduced already."""
    for index in range(len(op.results)):
        tensor = ir.RankedTensorType(op.operands[index].type)
        shape = list(tensor.shape)
        for dim in reversed(dims):
            for loop in walked[dim]:
                yield Exchange(loop, index, dim, Shares(1), tuple(shape), str(tensor.element_type))
            shape[dim] = 1


def reduce_shards(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Has the op reduce slices of the shards of its operands, instead of operands split along what it reduces."""
    count = len(op.results)
    whole = at.global_shape(op.operands[0])
    split = tensor_split(rule.operands[0], option)
    dims = sorted({each.dim for each in rule.exchanges})
    major = next(dim for dim in dims if split[dim])
    body = op.regions[0].blocks[0]
    values = list(op.operands)[:count]
    with ir.InsertionPoint(op), op.location:
        for dim in reversed(dims[dims.index(major) :]):
            if split[dim]:
                values = _gathered(body, values, dim, whole[dim], split[dim], at)
            if dim != major:
                values = _halved(body, values, dim)
    for index, value in enumerate(values):
        op.operands[index] = value
    for index, result in enumerate(op.results):
        at.define(result, result_sharding(rule, option, index, at.mesh))


def _gathered(body: ir.Block, values: Slices, dim: int, size: int, axes: Axes, at: SpmdProgram) -> Slices:
    """One slice for each device whose shard of `dim`, of `size` elements in all, is not padding alone."""
    length = shape_of(values[0])[dim]
    filled = None if size % at.mesh.group_size(axes) == 0 else _filled(length, size, axes, at)
    slices = _halved(body, values, dim, filled)
    gathered = (build.all_gather(value, at.mesh, mesh_axes=axes, gather_axis=dim) for value in slices)
    return [_rows(value, dim, 0, -(-size // length)) for value in gathered]


def _filled(length: int, size: int, axes: Axes, at: SpmdProgram) -> ir.Value:
    """Which rows of the shard are no padding: tensor<length x i1>, true ones first."""
    line = ir.RankedTensorType.get([length], ir.IntegerType.get_signless(32))
    places = stablehlo.iota(line, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0))
    position = stablehlo.add(places, broadcast_scalar(at.offset(axes, length), (length,)))
    return compare(position, splat(size, line), "LT")


def _halved(body: ir.Block, values: Slices, dim: int, filled: ir.Value | None = None) -> Slices:
    """Joins rows 2i and 2i+1 until one is left; a row that has no partner, or one of padding, stays as it is."""
    while (rows := shape_of(values[0])[dim]) > 1:
        even = rows - rows % 2
        first, second = ([_rows(value, dim, start, even, 2) for value in values] for start in (0, 1))
        joined = _applied(body, first, second)
        if filled is not None:
            partner = _rows(filled, 0, 1, even, 2)
            joined = [_chosen(partner, dim, new, old) for new, old in zip(joined, first, strict=True)]
            filled = _rows(filled, 0, 0, rows, 2)
        if rows % 2:
            along = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
            rest = [_rows(value, dim, even, rows) for value in values]
            joined = [stablehlo.concatenate(pair, along) for pair in zip(joined, rest, strict=True)]
        values = joined
    return values


def _rows(value: ir.Value, dim: int, low: int, high: int, stride: int = 1) -> ir.Value:
    shape = shape_of(value)
    if (low, high, stride) == (0, shape[dim], 1):
        return value
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], ends[dim], strides[dim] = low, high, stride
    cut: ir.Value = stablehlo.slice(value, starts, ends, strides)
    return cut


def _chosen(rows: ir.Value, dim: int, there: ir.Value, elsewhere: ir.Value) -> ir.Value:
    bits = ir.RankedTensorType.get(list(shape_of(there)), ir.IntegerType.get_signless(1))
    mask = stablehlo.broadcast_in_dim(bits, rows, ir.DenseI64ArrayAttr.get([dim]))
    value: ir.Value = stablehlo.select(mask, there, elsewhere)
    return value


def _applied(body: ir.Block, first: Sequence[ir.Value], second: Sequence[ir.Value]) -> Slices:
    """The body, which is written for scalars, on whole tensors."""
    shape = shape_of(first[0])
    known: dict[ir.Value, ir.Value] = dict(zip(body.arguments, [*first, *second], strict=True))
    *ops, last = [view.operation for view in body.operations]
    for op in ops:
        if op.name == "stablehlo.constant":
            scalar = op.clone().operation.results[0]
            known[op.results[0]] = broadcast_scalar(scalar, shape)
            continue
        types = [ir.RankedTensorType.get(list(shape), ir.RankedTensorType(result.type).element_type) for result in op.results]
        attributes = {named: op.attributes[named] for named in op.attributes}
        operands = [known.get(operand) or broadcast_scalar(operand, shape) for operand in op.operands]  # or one from outside
        made = ir.Operation.create(op.name, types, operands, attributes)
        known.update(zip(op.results, made.results, strict=True))
    return [known.get(value) or broadcast_scalar(value, shape) for value in last.operands]
