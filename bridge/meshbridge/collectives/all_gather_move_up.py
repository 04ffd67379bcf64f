"""`all-gather-move-up`: gathers before the data grows, and drops gathers of replicated values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, PatternPass, on, resize_uniform
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.dialect.signature import group_size
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.elements import is_bytewise, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.uses import defining_op
from meshbridge.ops.replication import can_be_replicated


@register
@dataclass(frozen=True)
class AllGatherMoveUp(PatternPass):
    """Moves all-gathers above operations that enlarge data, and replaces gathers of replicated values.

    Input:   %0 = stablehlo.convert %x : (tensor<2xbf16>) -> tensor<2xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xbf16> -> tensor<4xbf16>
             %1 = stablehlo.convert %0 : (tensor<4xbf16>) -> tensor<4xf32>

    Input:   %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %1 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>

    Such operations are elementwise ones with one operand that differs along the gathered dimension, `broadcast_in_dim`, and `pad`
    along other dimensions. The second form needs `%s` to be replicated along the axes (`is_replicated`); if it is not, one
    element per device is gathered and then broadcast.
    """

    name: ClassVar[str] = "all-gather-move-up"


@dataclass(frozen=True)
class _Gather:
    """An all-gather to be moved."""

    op: ir.Operation
    mesh: Mesh
    axes: Axes
    dim: int
    count: int

    @staticmethod
    def of(op: ir.Operation, rewriter: MeshRewriter) -> _Gather:
        view = AllGatherOp(op)
        mesh = rewriter.meshes[view.mesh]
        return _Gather(op, mesh, view.mesh_axes, view.gather_axis, group_size(mesh, view.mesh_axes))

    @property
    def result(self) -> ir.RankedTensorType:
        return ir.RankedTensorType(self.op.results[0].type)

    @property
    def builder(self) -> Builder:
        return Builder.before(self.op)

    def over(self, value: ir.Value, dim: int, rewriter: MeshRewriter) -> ir.Value:
        """`value` gathered along its dimension `dim`."""
        gathered = build.all_gather(value, self.mesh, mesh_axes=self.axes, gather_axis=dim, at=self.builder)
        rewriter.adopt(gathered)
        return gathered


def move_up(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gather `op` above the producer of its operand, if that makes it smaller."""
    producer = defining_op(op.operands[0])
    if producer is not None and producer.name not in _MOVES and not can_be_replicated(producer.name):
        return False
    gather = _Gather.of(op, rewriter)
    if not isinstance(op.operands[0].type, ir.RankedTensorType) or DYNAMIC in (gather.count, *gather.result.shape):
        return False
    value = _moved(gather, rewriter)
    if value is None:
        return False
    rewriter.replace(op, value)
    return True


def _moved(gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    source = gather.op.operands[0]
    if rewriter.is_replicated(source, gather.mesh.name, gather.axes):
        return _tiled(gather.builder, source, gather.dim, gather.count)
    producer = defining_op(source)
    if producer is None or producer.block != gather.op.block:
        return None
    move = _MOVES.get(producer.name)
    return move(producer, gather, rewriter) if move else None


def _tiled(builder: Builder, value: ir.Value, dim: int, count: int) -> ir.Value:
    """`count` copies of `value`, concatenated along `dim`."""
    shape = shape_of(value)
    value_dims = [*range(dim), *range(dim + 1, len(shape) + 1)]
    copies = builder.broadcast(value, [*shape[:dim], count, *shape[dim:]], value_dims)
    return builder.reshape(copies, [*shape[:dim], count * shape[dim], *shape[dim + 1 :]])


def _elementwise(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """Gathers the operand if only one varies and it is smaller than the result."""
    operands, result = list(op.operands), op.results[0].type
    if all(operand.type == result for operand in operands):
        return None
    size = type_bytes(result)
    if not any(type_bytes(operand.type) < size and is_bytewise(operand.type) for operand in operands):
        return None
    enlarged = {number: _enlarged(operand, gather, rewriter) for number, operand in enumerate(operands)}
    varying = [number for number in enlarged if enlarged[number] is None]
    if len(varying) != 1 or type_bytes(operands[varying[0]].type) >= size or not is_bytewise(operands[varying[0]].type):
        return None
    (number,) = varying
    if shape_of(operands[number]) != shape_of(op.results[0]):
        return None
    makers = {operand: make for operand, make in enlarged.items() if make is not None}
    values = [
        makers[index](gather.builder) if index in makers else gather.over(operands[index], gather.dim, rewriter)
        for index in enlarged
    ]
    return gather.builder.again(op, gather.result, values)


def _enlarged(value: ir.Value, gather: _Gather, rewriter: MeshRewriter) -> Callable[[Builder], ir.Value] | None:
    """A builder of `value` in the gathered shape, if it is the same at every index along the gathered dimension."""
    uniform = rewriter.is_replicated(value, gather.mesh.name, gather.axes)
    return resize_uniform(value, gather.dim, multiply=gather.count) if uniform else None


def _broadcast_in_dim(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """Gathers the operand of the broadcast: along the same dimension, or one element per device, which is then broadcast."""
    source, dims, dim = op.operands[0], list(integers(op.attributes["broadcast_dimensions"])), gather.dim
    shape, piece = shape_of(source), shape_of(op.results[0])[dim]
    if type_bytes(source.type) >= type_bytes(op.results[0].type):
        return None
    if dim in dims and shape[dims.index(dim)] == piece:
        return gather.builder.again(op, gather.result, [gather.over(source, dims.index(dim), rewriter)])
    if dim in dims:  # size 1, broadcast within each shard
        number = dims.index(dim)
        gathered = gather.over(source, number, rewriter)
    else:
        number = 0
        gathered = gather.over(gather.builder.reshape(source, [1, *shape]), 0, rewriter)
        dims.insert(0, dim)
    # The gathered dimension is (device, index in its shard): the gather gives the first, broadcasting the second.
    result = list(gather.result.shape)
    split = [*result[:dim], gather.count, piece, *result[dim + 1 :]]
    target_dims = [target + (target > dim) for target in dims]
    target_dims[number] = dim
    return gather.builder.reshape(gather.builder.broadcast(gathered, split, target_dims), result)


def _pad(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """Gathers before padding along other dimensions."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    if any(integers(op.attributes[name])[gather.dim] for name in names) or type_bytes(op.operands[0].type) >= type_bytes(
        op.results[0].type
    ):
        return None
    if not rewriter.is_replicated(op.operands[1], gather.mesh.name, gather.axes):
        return None
    return gather.builder.again(op, gather.result, [gather.over(op.operands[0], gather.dim, rewriter), op.operands[1]])


_MOVES: dict[str, Callable[[ir.Operation, _Gather, MeshRewriter], ir.Value | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.pad": _pad,
}
"""By name of the producer, how an all-gather moves above it."""

AllGatherMoveUp.patterns = (on(AllGatherOp, move_up),)
