"""`merge-collectives`: reuses the result of one collective for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import MeshPattern, MeshRewriter, PatternPass, collective_dims, sharing_key
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, CollectiveOpView, ReduceScatterOp
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_op
from meshbridge.ops.traits import Trait, ops_with


@register
@dataclass(frozen=True)
class MergeCollectives(PatternPass):
    """Merges collectives of one value: equal ones become one, and one whose result is part of another's becomes a slice.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
             %1 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = mesh.all_reduce %y on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %3 = mesh.all_reduce %y on @m mesh_axes = [1, 0] : tensor<4xf32> -> tensor<4xf32>
             %4 = mesh.reduce_scatter %y on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<4xf32> -> tensor<1xf32>
    Output:  %0 = mesh.all_gather %x on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
             %1 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<8xf32> -> tensor<4xf32>
             %2 = mesh.all_reduce %y on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %4 = mesh.all_slice %2 on @m mesh_axes = [0, 1] slice_axis = 0 : tensor<4xf32> -> tensor<1xf32>

    The remaining one dominates the other, or is in the same block and moves up. Values, axes, kind and dimension must agree.
    """

    name: ClassVar[str] = "merge-collectives"


def merge(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces the collective `op` by the result of another one of the same value."""
    for giver in dict.fromkeys(rewriter.users(op.operands[0])):
        if giver != op and giver.name in _GIVERS and _is_within_reach(giver, op, rewriter):
            with ir.InsertionPoint(op), op.location:
                value = _part_of(giver, op, rewriter)
            if value is not None:
                if not rewriter.dominates(giver, op):
                    giver.move_before(op)
                    if (part := defining_op(value)) is not None and part != giver:
                        part.move_before(op)
                rewriter.replace(op, value)
                return True
    return False


_GIVERS = ops_with(Trait.GROUPED, dialect="mesh")


def _is_within_reach(giver: ir.Operation, op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """True if `other` can serve `op`. Of two equal collectives, the first serves the second."""
    return rewriter.dominates(giver, op) or (giver.block == op.block and _key(giver) != _key(op))


def _key(op: ir.Operation) -> tuple[object, ...]:
    """Equal for collectives that return the same for one value."""
    return sharing_key(op), collective_dims(op), op.results[0].type


def _part_of(giver: ir.Operation, op: ir.Operation, rewriter: MeshRewriter) -> ir.Value | None:
    """The result of `op`, taken from the result of `other`; None if it is not part of it."""
    whole: ir.Value = giver.results[0]
    mesh = rewriter.meshes[CollectiveOpView(op).mesh]
    if _key(giver) == _key(op):
        return whole
    if CollectiveOpView(giver).mesh != mesh.name or DYNAMIC in (*mesh.shape, *ir.ShapedType(whole.type).shape):
        return None
    if giver.name == AllGatherOp.OPERATION_NAME and op.name == giver.name:
        larger, smaller = AllGatherOp(giver), AllGatherOp(op)
        extra = len(larger.mesh_axes) - len(smaller.mesh_axes)
        if extra <= 0 or larger.gather_axis != smaller.gather_axis or larger.mesh_axes[extra:] != smaller.mesh_axes:
            return None
        return build.all_slice(whole, mesh, mesh_axes=larger.mesh_axes[:extra], slice_axis=larger.gather_axis)
    if giver.name == AllReduceOp.OPERATION_NAME and op.name == ReduceScatterOp.OPERATION_NAME:
        total, piece = AllReduceOp(giver), ReduceScatterOp(op)
        is_same_sum = set(total.mesh_axes) == set(piece.mesh_axes) and total.reduction == piece.reduction
        if not is_same_sum or ir.ShapedType(whole.type).element_type != ir.ShapedType(op.results[0].type).element_type:
            return None
        return build.all_slice(whole, mesh, mesh_axes=piece.mesh_axes, slice_axis=piece.scatter_axis)
    return None


MergeCollectives.patterns = tuple(MeshPattern((name,), merge) for name in sorted(_GIVERS))
