"""`fold-collectives`: replaces two consecutive collectives by one or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on
from meshbridge.dialect import build
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, AllSliceOp, AllToAllOp, ReduceScatterOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ops.reductions import IDEMPOTENT


@register
@dataclass(frozen=True)
class FoldCollectives(PatternPass):
    """Folds a collective into the one that produces its operand.

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %1 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x4xf32> -> tensor<4x4xf32>
             %1 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 1 : tensor<4x4xf32> -> tensor<4x2xf32>
    Output:  %1 = mesh.all_to_all %x on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<2x4xf32> -> tensor<4x2xf32>

    Further pairs: two gathers, or two reduce-scatters, along one dimension become one over the axes of both; a slice of a gather
    is taken before it; an all-to-all and its inverse are dropped; so are idempotent reductions, and slices that are gathered
    again, of replicated values. The first of a pair must have no other use, or cost nothing.
    """

    name: ClassVar[str] = "fold-collectives"


def fold_gather(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Folds the producer of its operand into the all-gather `op`."""
    outer = AllGatherOp(op)
    if (inner := rewriter.collective(outer.input, AllGatherOp, op)) is not None:
        return _gather_once(outer, inner, rewriter)
    if (scatter := rewriter.collective(outer.input, ReduceScatterOp, op)) is not None:
        return _reduce_whole(outer, scatter, rewriter)
    if (piece := rewriter.collective(outer.input, AllSliceOp, op)) is not None:
        is_inverse = (piece.mesh, piece.mesh_axes, piece.slice_axis) == (outer.mesh, outer.mesh_axes, outer.gather_axis)
        if is_inverse and rewriter.is_replicated(piece.input, piece.mesh, piece.mesh_axes):
            rewriter.replace(op, piece.input)
            return True
    return False


def _gather_once(outer: AllGatherOp, inner: AllGatherOp, rewriter: MeshRewriter) -> bool:
    alike = (inner.mesh, inner.gather_axis) == (outer.mesh, outer.gather_axis)
    if not alike or rewriter.uses(outer.input) != 1 or set(inner.mesh_axes) & set(outer.mesh_axes):
        return False
    mesh, axes = rewriter.meshes[outer.mesh], (*outer.mesh_axes, *inner.mesh_axes)
    op = outer.operation
    with ir.InsertionPoint(op), op.location:
        rewriter.replace(op, build.all_gather(inner.input, mesh, mesh_axes=axes, gather_axis=outer.gather_axis))
    return True


def _reduce_whole(outer: AllGatherOp, scatter: ReduceScatterOp, rewriter: MeshRewriter) -> bool:
    is_inverse = (scatter.mesh, scatter.mesh_axes, scatter.scatter_axis) == (outer.mesh, outer.mesh_axes, outer.gather_axis)
    if not is_inverse or rewriter.uses(outer.input) != 1 or not _is_static(rewriter.meshes[outer.mesh], scatter.input.type):
        return False
    op, element = outer.operation, element_of(outer.operation.results[0].type)
    with ir.InsertionPoint(op), op.location:
        mesh, axes, kind = rewriter.meshes[outer.mesh], scatter.mesh_axes, scatter.reduction
        whole = build.all_reduce(scatter.input, mesh, mesh_axes=axes, reduction=kind, element_type=element)
    rewriter.replace(op, whole)
    return True


def _is_static(mesh: Mesh, *types: ir.Type) -> bool:
    return DYNAMIC not in (*mesh.shape, *(size for type_ in types for size in shape_of(type_)))


def fold_scatter(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Folds the reduce-scatter that the reduce-scatter `op` reads into it."""
    outer = ReduceScatterOp(op)
    inner = rewriter.collective(outer.input, ReduceScatterOp, op)
    if inner is None or rewriter.uses(outer.input) != 1 or set(inner.mesh_axes) & set(outer.mesh_axes):
        return False
    element = element_of(op.results[0].type)
    if (inner.mesh, inner.scatter_axis, inner.reduction) != (outer.mesh, outer.scatter_axis, outer.reduction):
        return False
    kind = outer.reduction
    if element_of(outer.input.type) != element or kind == "generic" or (kind == "average" and is_integer(element)):
        return False
    mesh, axes, dim = rewriter.meshes[outer.mesh], (*inner.mesh_axes, *outer.mesh_axes), outer.scatter_axis
    with ir.InsertionPoint(op), op.location:
        piece = build.reduce_scatter(inner.input, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind, element_type=element)
    rewriter.replace(op, piece)
    return True


def fold_slice(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Takes the slice `op` of an all-gather before it is gathered."""
    piece = AllSliceOp(op)
    gather = rewriter.collective(piece.input, AllGatherOp, op)
    if gather is None or gather.mesh != piece.mesh or not _is_static(rewriter.meshes[piece.mesh], gather.input.type):
        return False
    axes, dim = gather.mesh_axes, gather.gather_axis
    if not is_less(piece, axes, dim) or not (rewriter.uses(piece.input) == 1 or is_shard(piece, axes, dim)):
        return False
    rewriter.replace(op, piece_of_gathered(piece, gather.input, axes, dim, rewriter))
    return True


def is_shard(piece: AllSliceOp, axes: Axes, dim: int) -> bool:
    """True if `piece` of the gather over `axes` along `dim` is the gather's operand."""
    return piece.slice_axis == dim and piece.mesh_axes == axes


def is_less(piece: AllSliceOp, axes: Axes, dim: int) -> bool:
    """True if `piece` takes less communication than the gather over `axes` along `dim`."""
    sliced = piece.mesh_axes
    if piece.slice_axis == dim:
        return axes[: len(sliced)] == sliced
    return axes == sliced or not set(axes) & set(sliced)


def piece_of_gathered(piece: AllSliceOp, shard: ir.Value, axes: Axes, dim: int, rewriter: MeshRewriter) -> ir.Value:
    """The result of `piece` on the gather of `shard`, if `is_less` holds."""
    op, mesh, sliced, at = piece.operation, rewriter.meshes[piece.mesh], piece.mesh_axes, piece.slice_axis
    with ir.InsertionPoint(op), op.location:
        if is_shard(piece, axes, dim):
            return shard
        if at == dim:
            return build.all_gather(shard, mesh, mesh_axes=axes[len(sliced) :], gather_axis=dim)
        if axes == sliced:
            return build.all_to_all(shard, mesh, mesh_axes=axes, split_axis=at, concat_axis=dim)
        small = build.all_slice(shard, mesh, mesh_axes=sliced, slice_axis=at)
        rewriter.adopt(small)
        return build.all_gather(small, mesh, mesh_axes=axes, gather_axis=dim)


def fold_exchange(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Drops the all-to-all `op` and the one before it, whose inverse it is."""
    back = AllToAllOp(op)
    forward = rewriter.collective(back.input, AllToAllOp, op)
    if forward is None or (forward.mesh, forward.mesh_axes) != (back.mesh, back.mesh_axes):
        return False
    if (forward.split_axis, forward.concat_axis) != (back.concat_axis, back.split_axis):
        return False
    rewriter.replace(op, forward.input)
    return True


def drop_replicated(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Drops an idempotent all-reduce of a replicated value."""
    view = AllReduceOp(op)
    if view.reduction not in IDEMPOTENT or op.results[0].type != view.input.type:
        return False
    if not rewriter.is_replicated(view.input, view.mesh, view.mesh_axes):
        return False
    rewriter.replace(op, view.input)
    return True


FoldCollectives.patterns = (
    on(AllGatherOp, fold_gather),
    on(ReduceScatterOp, fold_scatter),
    on(AllSliceOp, fold_slice),
    on(AllToAllOp, fold_exchange),
    on(AllReduceOp, drop_replicated),
)
