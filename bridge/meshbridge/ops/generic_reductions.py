"""Variadic reductions, and reductions with a body of several ops, along split dimensions.

No mesh collective has such a body. Each device reduces its shard to one slice, an all-gather collects the slices, and the op
itself reduces them:

    %0:2 = the body on elements 2i and 2i+1 of %shard, until one is left : tensor<16x4x…> -> tensor<1x4x…>
    %1, %2 = mesh.all_gather of both on @m mesh_axes = [0] gather_axis = 0 : … -> tensor<8x4x…>
    %3:2 = stablehlo.reduce(%1 init: %i), (%2 init: %j) across dimensions = [0]

The initial value, which need not be neutral, enters once. Neighbours are combined in order, the most minor dimension first: the
body must be associative, as StableHLO requires, but need not be commutative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.affine_access import ShardSummaries
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.option import Option, result_sharding, tensor_split
from meshbridge.ops.rule import HaloExchange, ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram

Slices = list[ir.Value]
"""The values of a variadic reduction."""


def splittable_dims(op: ir.Operation) -> list[int]:
    """The dimensions that a `stablehlo.reduce` with any elementwise body reduces, major first; none for other bodies."""
    shape = shape_of(op.operands[0])
    *body, _ = op.regions[0].blocks[0].operations
    if not all(_is_scalar_op(inner.operation) for inner in body):
        return []
    return [dim for dim in sorted(integers(op.attributes["dimensions"])) if shape[dim] > 1]


def _is_scalar_op(op: ir.Operation) -> bool:
    return op.name == "stablehlo.constant" or (op.name in ELEMENTWISE and not len(op.regions))


def gathered_slices(op: ir.Operation, dims: list[int], walked: dict[int, tuple[int, ...]]) -> Iterator[HaloExchange]:
    """What splitting each of the reduced `dims` sends: one slice per device, in which more minor dimensions are already
    reduced."""
    for index in range(len(op.results)):
        tensor = ir.RankedTensorType(op.operands[index].type)
        shape = list(tensor.shape)
        for dim in reversed(dims):
            for loop in walked[dim]:
                yield HaloExchange(loop, index, dim, ShardSummaries(1), tuple(shape), str(tensor.element_type))
            shape[dim] = 1


def reduce_shards(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Makes the op reduce one gathered slice per shard."""
    count = len(op.results)
    global_shape = at.global_shape(op.operands[0])
    split = tensor_split(rule.operands[0], option)
    dims = sorted({exchange.dim for exchange in rule.exchanges})
    major = next(dim for dim in dims if split[dim])
    body = op.regions[0].blocks[0]
    values = list(op.operands)[:count]
    for dim in reversed(dims[dims.index(major) :]):
        if split[dim]:
            values = _gathered(body, values, dim, global_shape[dim], split[dim], at)
        if dim != major:
            values = _halved(body, values, dim, at.builder)
    for index, value in enumerate(values):
        op.operands[index] = value
    for index, result in enumerate(op.results):
        at.define(result, result_sharding(rule, option, index, at.mesh))


def _gathered(body: ir.Block, values: Slices, dim: int, size: int, axes: Axes, at: SpmdProgram) -> Slices:
    """Gathers one slice per device whose shard of `dim`, which has `size` elements globally, is not all padding."""
    builder, length = at.builder, shape_of(values[0])[dim]
    filled = None
    if size % at.mesh.group_size(axes):  # rows without padding: tensor<length x i1>, true ones first
        filled = builder.compare("LT", builder.count_from(at.offset(axes, length), length), size)
    slices = _halved(body, values, dim, builder, filled)
    gathered = (build.all_gather(value, at.mesh, mesh_axes=axes, gather_axis=dim, at=builder) for value in slices)
    return [builder.slice(value, dim, 0, -(-size // length)) for value in gathered]


def _halved(body: ir.Block, values: Slices, dim: int, builder: Builder, filled: ir.Value | None = None) -> Slices:
    """Combines rows 2i and 2i+1 until one is left. A row without a partner, or whose partner is padding, stays as it is."""
    while (rows := shape_of(values[0])[dim]) > 1:
        pairs = rows // 2
        evens, odds = ([builder.slice(value, dim, start, pairs, 2) for value in values] for start in (0, 1))
        combined = _applied(body, evens, odds, builder)
        if filled is not None:
            partner = builder.slice(filled, 0, 1, pairs, 2)
            combined = [builder.select_along(dim, partner, pair, even) for pair, even in zip(combined, evens, strict=True)]
            filled = builder.slice(filled, 0, 0, rows - pairs, 2)
        if rows % 2:
            unpaired = [builder.slice(value, dim, rows - 1, 1) for value in values]
            combined = [builder.concatenate(parts, dim) for parts in zip(combined, unpaired, strict=True)]
        values = combined
    return values


def _applied(body: ir.Block, lhs: Sequence[ir.Value], rhs: Sequence[ir.Value], builder: Builder) -> Slices:
    """Evaluates the body, which is written for scalars, on tensors."""
    shape = shape_of(lhs[0])
    tensors: dict[ir.Value, ir.Value] = dict(zip(body.arguments, [*lhs, *rhs], strict=True))
    *ops, end = [view.operation for view in body.operations]

    def spread(value: ir.Value) -> ir.Value:
        """The tensor for a scalar of the body, or for a scalar from outside, which is broadcast."""
        return tensors.get(value) or builder.broadcast(value, shape)

    for op in ops:
        if op.name == "stablehlo.constant":
            type_ = ir.RankedTensorType(op.results[0].type)
            tensors[op.results[0]] = builder.broadcast(builder.constant(type_, op.attributes["value"]), shape)
            continue
        types = [tensor(shape, element_of(result)) for result in op.results]
        applied = builder.op(op.name, types, [spread(operand) for operand in op.operands], dict(op.attributes.items()))
        tensors.update(zip(op.results, applied.results, strict=True))
    return [spread(value) for value in end.operands]
