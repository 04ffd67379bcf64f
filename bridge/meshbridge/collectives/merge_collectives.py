"""`merge-collectives`: what one collective has brought already is not communicated again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import MeshPattern, MeshRewriter, PatternPass, piece_dims, sharing_key
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
    """Merges collectives of one value: equal ones become one, and one that gives part of what another gives becomes a slice.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
             %1 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = mesh.all_reduce %y on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %3 = mesh.all_reduce %y on @m mesh_axes = [1, 0] : tensor<4xf32> -> tensor<4xf32>
             %4 = mesh.reduce_scatter %y on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<4xf32> -> tensor<1xf32>
    Output:  %0 = mesh.all_gather %x on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
             %1 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<8xf32> -> tensor<4xf32>
             %2 = mesh.all_reduce %y on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %4 = mesh.all_slice %2 on @m mesh_axes = [0, 1] slice_axis = 0 : tensor<4xf32> -> tensor<1xf32>

    The one that stays stands before the other, or in the same block, where it then moves up; what stands in a branch or a loop
    serves nobody outside. Values, axes, kind and dimension must agree.
    """

    name: ClassVar[str] = "merge-collectives"


def merge(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces the collective `op` by what another one of the same value gives."""
    for other in dict.fromkeys(rewriter.users(op.operands[0])):
        if other != op and other.name in _GIVERS and _is_within_reach(other, op, rewriter):
            with ir.InsertionPoint(op), op.location:
                value = _part_of(other, op, rewriter)
            if value is not None:
                if not rewriter.dominates(other, op):
                    other.move_before(op)
                    if (part := defining_op(value)) is not None and part != other:
                        part.move_before(op)
                rewriter.replace(op, value)
                return True
    return False


_GIVERS = ops_with(Trait.GROUPED, dialect="mesh")


def _is_within_reach(other: ir.Operation, op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Whether `other` can serve `op`. The same collective twice: the first serves the second."""
    return rewriter.dominates(other, op) or (other.block == op.block and _key(other) != _key(op))


def _key(op: ir.Operation) -> tuple[object, ...]:
    """What two collectives of one value must share to give the same."""
    return sharing_key(op), piece_dims(op), op.results[0].type


def _part_of(other: ir.Operation, op: ir.Operation, rewriter: MeshRewriter) -> ir.Value | None:
    """What `op` gives, taken from the result of `other`; None if it is not in there."""
    whole: ir.Value = other.results[0]
    mesh = rewriter.meshes[CollectiveOpView(op).mesh]
    if _key(other) == _key(op):
        return whole
    if CollectiveOpView(other).mesh != mesh.name or DYNAMIC in (*mesh.shape, *ir.ShapedType(whole.type).shape):
        return None
    if other.name == AllGatherOp.OPERATION_NAME and op.name == other.name:
        wide, narrow = AllGatherOp(other), AllGatherOp(op)
        extra = len(wide.mesh_axes) - len(narrow.mesh_axes)
        if extra <= 0 or wide.gather_axis != narrow.gather_axis or wide.mesh_axes[extra:] != narrow.mesh_axes:
            return None
        return build.all_slice(whole, mesh, mesh_axes=wide.mesh_axes[:extra], slice_axis=wide.gather_axis)
    if other.name == AllReduceOp.OPERATION_NAME and op.name == ReduceScatterOp.OPERATION_NAME:
        total, piece = AllReduceOp(other), ReduceScatterOp(op)
        alike = set(total.mesh_axes) == set(piece.mesh_axes) and total.reduction == piece.reduction
        if not alike or ir.ShapedType(whole.type).element_type != ir.ShapedType(op.results[0].type).element_type:
            return None
        return build.all_slice(whole, mesh, mesh_axes=piece.mesh_axes, slice_axis=piece.scatter_axis)
    return None


MergeCollectives.patterns = tuple(MeshPattern((name,), merge) for name in sorted(_GIVERS))
