"""`all-gather-move-up`: gather before the data grows, and not at all what is replicated already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, PatternPass, in_size, on
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
    """Moves all-gathers above operations that make data larger; where all devices of a group hold the same, no gather is left.

    Input:   %0 = stablehlo.convert %x : (tensor<2xbf16>) -> tensor<2xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xbf16> -> tensor<4xbf16>
             %1 = stablehlo.convert %0 : (tensor<4xbf16>) -> tensor<4xf32>

    Input:   %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %1 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>

    Such operations are elementwise ones of one operand and of others whose elements are all equal, `broadcast_in_dim`, and `pad`
    along other dimensions. The second form needs `%s` to be replicated along the axes (`is_replicated`); else one element of each
    device is gathered, and repeated afterwards.
    """

    name: ClassVar[str] = "all-gather-move-up"


@dataclass(frozen=True)
class _Gather:
    """An all-gather to be moved, and where its replacement goes."""

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
    def emit(self) -> Builder:
        return Builder.before(self.op)

    def over(self, value: ir.Value, dim: int, rewriter: MeshRewriter) -> ir.Value:
        """`value` gathered along its dimension `dim`."""
        gathered = build.all_gather(value, self.mesh, mesh_axes=self.axes, gather_axis=dim, at=self.emit)
        rewriter.adopt(gathered)
        return gathered


def move_up(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gather `op` above what computes its operand, if that makes it smaller."""
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
        return _repeated(gather.emit, source, gather.dim, gather.count)
    producer = defining_op(source)
    if producer is None or producer.block != gather.op.block:
        return None
    move = _MOVES.get(producer.name)
    return move(producer, gather, rewriter) if move else None


def _repeated(emit: Builder, value: ir.Value, dim: int, count: int) -> ir.Value:
    """`value` `count` times, one after the other along `dim`."""
    shape = shape_of(value)
    kept = [*range(dim), *range(dim + 1, len(shape) + 1)]
    copies = emit.broadcast(value, [*shape[:dim], count, *shape[dim:]], kept)
    return emit.reshape(copies, [*shape[:dim], count * shape[dim], *shape[dim + 1 :]])


def _elementwise(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """The one operand whose elements differ is smaller than the result."""
    operands, result = list(op.operands), op.results[0].type
    if all(operand.type == result for operand in operands):
        return None
    size = type_bytes(result)
    if not any(type_bytes(operand.type) < size and is_bytewise(operand.type) for operand in operands):
        return None
    whole = {number: _enlarged(operand, gather, rewriter) for number, operand in enumerate(operands)}
    varying = [number for number in whole if whole[number] is None]
    if len(varying) != 1 or type_bytes(operands[varying[0]].type) >= size or not is_bytewise(operands[varying[0]].type):
        return None
    (number,) = varying
    if shape_of(operands[number]) != shape_of(op.results[0]):
        return None
    makers = {other: make for other, make in whole.items() if make is not None}
    values = [
        makers[each](gather.emit) if each in makers else gather.over(operands[each], gather.dim, rewriter) for each in whole
    ]
    return gather.emit.again(op, gather.result, values)


def _enlarged(value: ir.Value, gather: _Gather, rewriter: MeshRewriter) -> Callable[[Builder], ir.Value] | None:
    """How to make `value` for the gathered shape, if it is the same at every index along the gathered dimension."""
    uniform = rewriter.is_replicated(value, gather.mesh.name, gather.axes)
    return in_size(value, gather.dim, multiply=gather.count) if uniform else None


def _broadcast_in_dim(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """Gathers what is broadcast: along the same dimension, or one element of each device, which is then repeated."""
    source, dims, dim = op.operands[0], list(integers(op.attributes["broadcast_dimensions"])), gather.dim
    shape, piece = shape_of(source), shape_of(op.results[0])[dim]
    if type_bytes(source.type) >= type_bytes(op.results[0].type):
        return None
    if dim in dims and shape[dims.index(dim)] == piece:
        return gather.emit.again(op, gather.result, [gather.over(source, dims.index(dim), rewriter)])
    if dim in dims:  # of size one, and broadcast over the piece
        number = dims.index(dim)
        wide = gather.over(source, number, rewriter)
    else:
        number = 0
        wide = gather.over(gather.emit.reshape(source, [1, *shape]), 0, rewriter)
        dims.insert(0, dim)
    # The gathered dimension is (device, index in its piece): the first comes from the gather, the second is a copy.
    result = list(gather.result.shape)
    split = [*result[:dim], gather.count, piece, *result[dim + 1 :]]
    places = [each + (each > dim) for each in dims]
    places[number] = dim
    return gather.emit.reshape(gather.emit.broadcast(wide, split, places), result)


def _pad(op: ir.Operation, gather: _Gather, rewriter: MeshRewriter) -> ir.Value | None:
    """Padding along other dimensions is added after gathering."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    if any(integers(op.attributes[name])[gather.dim] for name in names) or type_bytes(op.operands[0].type) >= type_bytes(
        op.results[0].type
    ):
        return None
    if not rewriter.is_replicated(op.operands[1], gather.mesh.name, gather.axes):
        return None
    return gather.emit.again(op, gather.result, [gather.over(op.operands[0], gather.dim, rewriter), op.operands[1]])


_MOVES: dict[str, Callable[[ir.Operation, _Gather, MeshRewriter], ir.Value | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.pad": _pad,
}
"""By name, what an all-gather of an operation's result becomes when it moves above."""

AllGatherMoveUp.patterns = (on(AllGatherOp, move_up),)
