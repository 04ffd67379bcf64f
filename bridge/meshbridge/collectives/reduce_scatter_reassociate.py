"""`reduce-scatter-reassociate`: computes first and reduce-scatters once (the RFC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.collectives import commuting_ops
from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on, sharing_key
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import ReduceScatterOp
from meshbridge.dialect.signature import element_of, group_size, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import neutral, resized, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import LOOK_THROUGH
from meshbridge.ops.dimensions import result_dim_of_blocks
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class ReduceScatterReassociate(PatternPass):
    """Moves several reduce-scatters below an operation that commutes with them (`commuting_ops.COMMUTING`), and one below a
    reduction of the same kind along other dimensions, which makes it smaller.

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = mesh.reduce_scatter %y on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = stablehlo.add %0, %1 : tensor<2xf32>
    Output:  %0 = stablehlo.add %x, %y : tensor<4xf32>
             %2 = mesh.reduce_scatter %0 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x3xf32> -> tensor<2x3xf32>
             %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1]
    Output:  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
             %1 = mesh.reduce_scatter %0 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    The order of axes matters, as it determines each device's shard. Transposes and reshapes may precede the reduction: if query
    heads share keys, gradients of keys are summed over these heads.
    """

    name: ClassVar[str] = "reduce-scatter-reassociate"


def reassociate(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the reduce-scatters that `op` reads below it."""
    operands = list(op.operands)
    can_scatter = [rewriter.collective(operand, ReduceScatterOp, op) for operand in operands]
    pieces = [scatter for scatter in can_scatter if scatter is not None and commuting_ops.keeps_type(scatter)]
    if (
        len(pieces) != len(operands)
        or len({(sharing_key(scatter.operation), scatter.scatter_axis, scatter.input.type) for scatter in pieces}) != 1
    ):
        return False
    if any(rewriter.uses(value) != operands.count(value) for value in operands):
        return False
    template, source = pieces[0], pieces[0].input.type
    if not commuting_ops.commutes(op.name, template.reduction, element_of(source)):
        return False
    location = template.operation.location
    mesh, axes, dim, kind = rewriter.meshes[template.mesh], template.mesh_axes, template.scatter_axis, template.reduction
    for number, value in enumerate([scatter.input for scatter in pieces]):
        rewriter.set_operand(op, number, value)
    op.results[0].set_type(source)
    rewriter.replace_after(
        op, location, lambda value: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind)
    )
    return True


_ARRANGING = frozenset(("stablehlo.reshape", "stablehlo.transpose"))


def reduce_first(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the reduce-scatter `op` below its only reader, a reduction, and below transposes and reshapes before that."""
    scatter = ReduceScatterOp(op)
    mesh, kind = rewriter.meshes[scatter.mesh], scatter.reduction
    value, dims, between = op.results[0], [scatter.scatter_axis], list[ir.Operation]()
    while True:
        users = rewriter.users(value)
        if len(users) != 1 or (step := users[0]).block != op.block or len(between) > LOOK_THROUGH:
            return False
        if step.name == "stablehlo.reduce":
            break
        if step.name not in _ARRANGING or DYNAMIC in (*shape_of(value.type), *shape_of(step.results[0].type)):
            return False
        if (below := result_dim_of_blocks(step, dims[-1], shape_of(value.type)[dims[-1]])) is None:  # every element is a shard
            return False
        dims.append(below)
        between.append(step)
        value = step.results[0]
    reduced, count = integers(step.attributes["dimensions"]), group_size(mesh, scatter.mesh_axes)
    sizes = (count, *shape_of(op.operands[0].type), *shape_of(value.type))
    if len(step.results) != 1 or dims[-1] in reduced or DYNAMIC in sizes or not commuting_ops.keeps_type(scatter):
        return False
    smaller = type_bytes(step.results[0].type) < type_bytes(value.type)
    if not smaller or body_kind(step) != kind or not is_splat(step.operands[1], neutral(kind, element_of(value.type))):
        return False
    builder, whole = Builder.before(step), scatter.input
    for between_op, dim in zip(between, dims[1:], strict=True):
        whole = builder.again(between_op, resized(ir.RankedTensorType(between_op.results[0].type), dim, multiply=count), [whole])
        rewriter.adopt(whole)
    dim = dims[-1] - sum(number < dims[-1] for number in reduced)
    location, axes = op.location, scatter.mesh_axes
    step.results[0].set_type(resized(ir.RankedTensorType(step.results[0].type), dim, multiply=count))
    rewriter.set_operand(step, 0, whole)
    rewriter.replace_after(
        step, location, lambda value: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind)
    )
    return True


ReduceScatterReassociate.patterns = (
    on(ReduceScatterOp, reassociate, commuting_ops.NAMES),
    on(ReduceScatterOp, reduce_first),
)
