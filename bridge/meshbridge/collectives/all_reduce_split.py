"""`all-reduce-split`: splits an all-reduce into a reduce-scatter and an all-gather if only one of the two is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives import commuting_ops
from meshbridge.collectives.all_gather_move_down import move_below
from meshbridge.collectives.all_reduce_reassociate import reassociate
from meshbridge.collectives.mesh_simplifications import can_scatter, scatter, scatter_part
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, PatternPass, on
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, AllSliceOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import resized, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import LOOK_THROUGH, defining_op
from meshbridge.ops.dimensions import operand_dims


@register
@dataclass(frozen=True)
class AllReduceSplit(PatternPass):
    """Splits all-reduces of which one half is dead, or is done by another collective anyway.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = stablehlo.tanh %0 : tensor<4xf32>
             %2 = mesh.all_slice %1 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
    Output:  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = stablehlo.tanh %0 : tensor<2xf32>

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_gather %y on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
    Output:  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = stablehlo.multiply %0, %y : tensor<2xf32>
             %2 = mesh.all_gather %1 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %y on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.add %0, %1 : tensor<4xf32>
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = stablehlo.add %0, %y : tensor<4xf32>
             %2 = mesh.all_reduce %1 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>

    Elementwise operations, transposes and broadcasts may be between the all-reduce and the slice, if their results have no other
    use.
    """

    name: ClassVar[str] = "all-reduce-split"


def slice_first(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the slice `op` above elementwise operations, transposes and broadcasts, if it reaches an all-reduce."""
    view = AllSliceOp(op)
    mesh = rewriter.meshes[view.mesh]
    if DYNAMIC in (*mesh.shape, *shape_of(op.operands[0].type)):
        return False
    producer = defining_op(view.input)
    if producer is None or producer.name not in _PASSED or not _leads_to_reduction(view.input, view.slice_axis, view, rewriter):
        return False
    rewriter.replace(op, _sliced(view.input, view.slice_axis, view, rewriter))
    return True


_PASSED = ELEMENTWISE | {"stablehlo.transpose", "stablehlo.broadcast_in_dim"}


def _operand_dim(op: ir.Operation, dim: int) -> int | None:
    """The dimension of the operands of `op` that becomes dimension `dim` of its result; None if that is broadcast."""
    return next((number for number in operand_dims(op, dim) or () if number is not None), None)


def _leads_to_reduction(value: ir.Value, dim: int, piece: AllSliceOp, rewriter: MeshRewriter, depth: int = LOOK_THROUGH) -> bool:
    """True if `value`, which has one use, comes from an all-reduce that a reduce-scatter along the slice's axes can replace, with
    dimension `dim`."""
    op = defining_op(value)
    if op is None or op.block != piece.operation.block or rewriter.uses(value) != 1 or depth == 0:
        return False
    if op.name == AllReduceOp.OPERATION_NAME:
        return can_scatter(AllReduceOp(op), piece.mesh, piece.mesh_axes)
    if op.name not in _PASSED or (operand_dim := _operand_dim(op, dim)) is None:
        return False
    return any(_leads_to_reduction(operand, operand_dim, piece, rewriter, depth - 1) for operand in op.operands)


def _sliced(value: ir.Value, dim: int, piece: AllSliceOp, rewriter: MeshRewriter, depth: int = LOOK_THROUGH) -> ir.Value:
    """`value` sliced along `dim`, as far up as the way leads to all-reduces."""
    op, builder = defining_op(value), Builder.before(piece.operation)
    if ir.RankedTensorType(value.type).rank == 0:
        return value
    if op is None or op.name not in _PASSED or not _leads_to_reduction(value, dim, piece, rewriter, depth):
        small = build.all_slice(value, rewriter.meshes[piece.mesh], mesh_axes=piece.mesh_axes, slice_axis=dim, at=builder)
        rewriter.adopt(small)
        return small
    operand_dim = _operand_dim(op, dim)
    assert operand_dim is not None  # it leads to a reduction
    operands = [_sliced(operand, operand_dim, piece, rewriter, depth - 1) for operand in op.operands]
    type_ = resized(ir.RankedTensorType(value.type), dim, divide=rewriter.meshes[piece.mesh].group_size(piece.mesh_axes))
    return builder.again(op, type_, operands)


def share_gather(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces an all-reduce among the operands of `op` by a reduce-scatter, if the other operands are gathered: one all-gather
    of the result serves both."""
    operands = list(op.operands)
    gathers = [gather for value in operands if (gather := rewriter.collective(value, AllGatherOp, op)) is not None]
    reductions = {number: rewriter.collective(value, AllReduceOp, op) for number, value in enumerate(operands)}
    totals = {number: total for number, total in reductions.items() if total is not None}
    if len({(collective.mesh, collective.mesh_axes, collective.gather_axis) for collective in gathers}) != 1 or not totals:
        return False
    gather = gathers[0]
    other_values = [value for value in operands if not _is_collective(value, op, rewriter)]
    scatters_all = all(can_scatter(collective, gather.mesh, gather.mesh_axes) for collective in totals.values())
    have_one_use = all(rewriter.uses(operands[number]) == 1 for number in totals)
    gather_dies = any(rewriter.uses(collective.operation.results[0]) == 1 for collective in gathers)
    uniform = all(rewriter.is_replicated(value, gather.mesh, gather.mesh_axes) for value in other_values)
    static = DYNAMIC not in (*rewriter.meshes[gather.mesh].shape, *shape_of(op.results[0].type))
    if not (scatters_all and have_one_use and gather_dies and uniform and static):
        return False
    if type_bytes(op.results[0].type) > max(type_bytes(operands[number].type) for number in totals):
        return False
    for number, total in totals.items():
        rewriter.set_operand(op, number, _scattered_and_gathered(total, gather, op, rewriter))
    return move_below(op, rewriter)


def _is_collective(value: ir.Value, user: ir.Operation, rewriter: MeshRewriter) -> bool:
    return rewriter.collective(value, AllGatherOp, user) is not None or rewriter.collective(value, AllReduceOp, user) is not None


def _scattered_and_gathered(total: AllReduceOp, gather: AllGatherOp, user: ir.Operation, rewriter: MeshRewriter) -> ir.Value:
    """The all-reduce as a reduce-scatter and an all-gather like `gather`."""
    axes, dim, at = gather.mesh_axes, gather.gather_axis, Builder(total.operation.location, ir.InsertionPoint(user))
    piece = scatter_part(total, axes, dim, rewriter, at)
    rewriter.adopt(piece)
    return build.all_gather(piece, rewriter.meshes[gather.mesh], mesh_axes=axes, gather_axis=dim, at=at)


def share_reduction(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Reduces one operand of `op` over the axes that the other is not reduced over, then both together over the rest."""
    left_total, right_total = (rewriter.collective(value, AllReduceOp, op) for value in op.operands)
    if left_total is None or right_total is None:
        return False
    larger, smaller = sorted((left_total, right_total), key=lambda total: -len(total.mesh_axes))
    kind, element = larger.reduction, element_of(op.results[0].type)
    if (larger.mesh, kind) != (smaller.mesh, smaller.reduction) or not set(smaller.mesh_axes) < set(larger.mesh_axes):
        return False
    if not (
        commuting_ops.keeps_type(left_total)
        and commuting_ops.keeps_type(right_total)
        and commuting_ops.commutes(op.name, kind, element)
    ):
        return False
    if any(rewriter.uses(value) != 1 for value in op.operands):
        return False
    mesh, number = rewriter.meshes[larger.mesh], int(larger is right_total)
    extra_axes = [axis for axis in larger.mesh_axes if axis not in smaller.mesh_axes]
    with ir.InsertionPoint(op), larger.operation.location:
        part = build.all_reduce(larger.input, mesh, mesh_axes=extra_axes, reduction=kind)
        whole = build.all_reduce(part, mesh, mesh_axes=smaller.mesh_axes, reduction=kind)
    rewriter.adopt(part)
    rewriter.set_operand(op, number, whole)
    return reassociate(op, rewriter)


AllReduceSplit.patterns = (
    on(AllSliceOp, slice_first),
    on(AllReduceOp, scatter, frozenset((AllSliceOp.OPERATION_NAME,))),
    on(AllReduceOp, share_gather, ELEMENTWISE),
    on(AllReduceOp, share_reduction, commuting_ops.NAMES),
)
