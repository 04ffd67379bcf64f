"""`mesh-simplifications`: upstream's simplification pass, with the reduce-scatter that it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives import commuting_ops
from meshbridge.collectives.all_reduce_reassociate import reassociate
from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on
from meshbridge.dialect import build
from meshbridge.dialect.attributes import index_attr
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, AllSliceOp, MeshShapeOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC, Axes


@register
@dataclass(frozen=True)
class MeshSimplifications(PatternPass):
    """Moves all-reduces below operations that commute with them, turns a sliced one into a reduce-scatter, and replaces known
    mesh sizes by constants.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = mesh.mesh_shape @m axes = [0] : index
    Output:  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<2xf32> -> tensor<2xf32>
             %2 = arith.constant 2 : index

    All-reduces move as in `all-reduce-reassociate`, for binary stablehlo and arith operations. Unlike upstream, it respects
    signs: `arith.maxui` stays above a signed maximum.
    """

    name: ClassVar[str] = "mesh-simplifications"


@register
@dataclass(frozen=True)
class TestMeshSimplifications(MeshSimplifications):
    """Does the work of `mesh-simplifications`; upstream's pass of this name.

    Input:   %0 = mesh.mesh_shape @m axes = [0] : index
    Output:  %0 = arith.constant 2 : index
    """

    name: ClassVar[str] = "test-mesh-simplifications"
    aliases: ClassVar[tuple[str, ...]] = ("test-grid-simplifications", "shard-simplify")


def scatter(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces a slice of an all-reduce by a reduce-scatter; axes that are not sliced are reduced afterwards."""
    piece = AllSliceOp(op)
    whole = rewriter.collective(piece.input, AllReduceOp, op)
    if whole is None or not can_scatter(whole, piece.mesh, piece.mesh_axes):
        return False
    if DYNAMIC in (*rewriter.meshes[piece.mesh].shape, *shape_of(whole.input.type), *shape_of(op.results[0].type)):
        return False
    slices = dict.fromkeys(rewriter.users(piece.input))
    if not all(_is_same_slice(user, piece) for user in slices):
        return False
    at = Builder(op.location, ir.InsertionPoint.after(whole.operation))
    value = scatter_part(whole, piece.mesh_axes, piece.slice_axis, rewriter, at)
    for slice_op in slices:
        rewriter.replace(slice_op, value)
    return True


def can_scatter(total: AllReduceOp, mesh: str, axes: Axes) -> bool:
    """True if a reduce-scatter along `axes` can do part of the all-reduce. An average of integers rounds, so it cannot be
    split."""
    if total.mesh != mesh or not set(axes) <= set(total.mesh_axes) or total.reduction == "generic":
        return False
    whole = set(axes) == set(total.mesh_axes)
    return whole or total.reduction != "average" or not is_integer(element_of(total.operation.results[0].type))


def scatter_part(total: AllReduceOp, axes: Axes, dim: int, rewriter: MeshRewriter, at: Builder) -> ir.Value:
    """The all-reduce as a reduce-scatter along `axes`, then an all-reduce of the shard over the other axes."""
    mesh, kind, element = rewriter.meshes[total.mesh], total.reduction, element_of(total.operation.results[0].type)
    value = build.reduce_scatter(total.input, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind, element_type=element, at=at)
    rewriter.adopt(value)
    other_axes = [axis for axis in total.mesh_axes if axis not in axes]
    return build.all_reduce(value, mesh, mesh_axes=other_axes, reduction=kind, at=at) if other_axes else value


def _is_same_slice(op: ir.Operation, piece: AllSliceOp) -> bool:
    """True if `op`, which reads the operand of `piece`, returns the same."""
    if op.name != AllSliceOp.OPERATION_NAME:
        return False
    view = AllSliceOp(op)
    return (view.mesh, view.mesh_axes, view.slice_axis) == (piece.mesh, piece.mesh_axes, piece.slice_axis)


def _name_sizes(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces known sizes by constants; a smaller `mesh_shape` returns the others."""
    view = MeshShapeOp(op)
    mesh = rewriter.meshes[view.mesh]
    axes = view.axes or tuple(range(mesh.rank))
    unknown = tuple(axis for axis in axes if mesh.shape[axis] == DYNAMIC)
    if len(unknown) == len(axes):
        return False
    builder, index = Builder.before(op), ir.IndexType.get()
    unknown_sizes = iter(build.mesh_shape(mesh, unknown, at=builder) if unknown else ())
    sizes = {axis: index_attr(mesh.shape[axis]) for axis in axes if axis not in unknown}
    rewriter.replace(
        op,
        *(
            builder.value("arith.constant", index, [], {"value": sizes[axis]}) if axis in sizes else next(unknown_sizes)
            for axis in axes
        ),
    )
    return True


MeshSimplifications.patterns = (
    on(AllReduceOp, reassociate, commuting_ops.NAMES),
    on(AllReduceOp, scatter, frozenset((AllSliceOp.OPERATION_NAME,))),
    on(MeshShapeOp, _name_sizes),
)
