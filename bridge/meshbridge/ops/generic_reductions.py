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
from meshbridge.ir.builder import Builder, element_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.option import Option, result_sharding, tensor_split
from meshbridge.ops.reach import Shares
from meshbridge.ops.rule import HaloExchange, ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram

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


def gathered_slices(op: ir.Operation, dims: list[int], walked: dict[int, tuple[int, ...]]) -> Iterator[HaloExchange]:
    """What sharding each of the reduced `dims`, of these loops, sends: one slice per device, in which the dimensions
    minor to it are reduced already."""
    for index in range(len(op.results)):
        tensor = ir.RankedTensorType(op.operands[index].type)
        shape = list(tensor.shape)
        for dim in reversed(dims):
            for loop in walked[dim]:
                yield HaloExchange(loop, index, dim, Shares(1), tuple(shape), str(tensor.element_type))
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
    for dim in reversed(dims[dims.index(major) :]):
        if split[dim]:
            values = _gathered(body, values, dim, whole[dim], split[dim], at)
        if dim != major:
            values = _halved(body, values, dim, at.emit)
    for index, value in enumerate(values):
        op.operands[index] = value
    for index, result in enumerate(op.results):
        at.define(result, result_sharding(rule, option, index, at.mesh))


def _gathered(body: ir.Block, values: Slices, dim: int, size: int, axes: Axes, at: SpmdProgram) -> Slices:
    """One slice for each device whose shard of `dim`, of `size` elements in all, is not padding alone."""
    emit, length = at.emit, shape_of(values[0])[dim]
    filled = None
    if size % at.mesh.group_size(axes):  # rows that are no padding: tensor<length x i1>, true ones first
        filled = emit.compare("LT", emit.count_from(at.offset(axes, length), length), size)
    slices = _halved(body, values, dim, emit, filled)
    gathered = (build.all_gather(value, at.mesh, mesh_axes=axes, gather_axis=dim, at=emit) for value in slices)
    return [emit.slice(value, dim, 0, -(-size // length)) for value in gathered]


def _halved(body: ir.Block, values: Slices, dim: int, emit: Builder, filled: ir.Value | None = None) -> Slices:
    """Joins rows 2i and 2i+1 until one is left; a row that has no partner, or one of padding, stays as it is."""
    while (rows := shape_of(values[0])[dim]) > 1:
        pairs = rows // 2
        first, second = ([emit.slice(value, dim, start, pairs, 2) for value in values] for start in (0, 1))
        joined = _applied(body, first, second, emit)
        if filled is not None:
            partner = emit.slice(filled, 0, 1, pairs, 2)
            joined = [emit.select_along(dim, partner, new, old) for new, old in zip(joined, first, strict=True)]
            filled = emit.slice(filled, 0, 0, rows - pairs, 2)
        if rows % 2:
            rest = [emit.slice(value, dim, rows - 1, 1) for value in values]
            joined = [emit.concatenate(pair, dim) for pair in zip(joined, rest, strict=True)]
        values = joined
    return values


def _applied(body: ir.Block, first: Sequence[ir.Value], second: Sequence[ir.Value], emit: Builder) -> Slices:
    """The body, which is written for scalars, on tensors."""
    shape = shape_of(first[0])
    known: dict[ir.Value, ir.Value] = dict(zip(body.arguments, [*first, *second], strict=True))
    *ops, last = [view.operation for view in body.operations]

    def spread(value: ir.Value) -> ir.Value:
        """The tensor of a scalar of the body, or of what is around it."""
        return known.get(value) or emit.broadcast(value, shape)

    for op in ops:
        if op.name == "stablehlo.constant":
            type_ = ir.RankedTensorType(op.results[0].type)
            known[op.results[0]] = emit.broadcast(emit.constant(type_, op.attributes["value"]), shape)
            continue
        types = [tensor(shape, element_of(result)) for result in op.results]
        made = emit.op(op.name, types, [spread(operand) for operand in op.operands], dict(op.attributes.items()))
        known.update(zip(op.results, made.results, strict=True))
    return [spread(value) for value in last.operands]
