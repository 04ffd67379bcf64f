"""`reduce-scatter-redirect`: reduce-scatters along the dimension that a later all-to-all splits, which makes that unnecessary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, PatternPass, on
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import AllToAllOp, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_op

_TRANSPOSE = "stablehlo.transpose"


@register
@dataclass(frozen=True)
class ReduceScatterRedirect(PatternPass):
    """Reduce-scatters along the dimension that an all-to-all splits, instead of the one that it concatenates.

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 1 : tensor<4x4xf32> -> tensor<4x2xf32>
             %1 = stablehlo.convert %0 : (tensor<4x2xf32>) -> tensor<4x2xbf16>
             %2 = mesh.all_to_all %1 on @m mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<4x2xbf16> -> tensor<2x4xbf16>
    Output:  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x4xf32> -> tensor<2x4xf32>
             %2 = stablehlo.convert %0 : (tensor<2x4xf32>) -> tensor<2x4xbf16>

    Transposes and elementwise operations of one operand may be in between, if nothing else reads them.
    """

    name: ClassVar[str] = "reduce-scatter-redirect"


def redirect(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Drops the all-to-all `op` if it exchanges a value that has just been scattered."""
    exchange = AllToAllOp(op)
    value, split, concat = exchange.input, exchange.split_axis, exchange.concat_axis
    between: list[ir.Operation] = []
    while (scatter := rewriter.collective(value, ReduceScatterOp, op)) is None:
        step = defining_op(value)
        if step is None or step.block != op.block or rewriter.uses(value) != 1 or not _passes(step):
            return False
        if step.name == _TRANSPOSE:
            order = integers(step.attributes["permutation"])
            split, concat = order[split], order[concat]
        between.append(step)
        value = step.operands[0]
    mesh, axes, kind = rewriter.meshes[scatter.mesh], scatter.mesh_axes, scatter.reduction
    if (scatter.mesh, axes, scatter.scatter_axis) != (exchange.mesh, exchange.mesh_axes, concat):
        return False
    if rewriter.uses(value) != 1 or kind == "generic" or DYNAMIC in (*mesh.shape, *shape_of(scatter.input)):
        return False
    builder, element = Builder.before(op), element_of(value)
    at = Builder(scatter.operation.location, builder.ip)
    result = build.reduce_scatter(
        scatter.input, mesh, mesh_axes=axes, scatter_axis=split, reduction=kind, element_type=element, at=at
    )
    rewriter.adopt(result)
    for step in reversed(between):
        shape = shape_of(result)
        if step.name == _TRANSPOSE:
            shape = [shape[dim] for dim in integers(step.attributes["permutation"])]
        result = builder.again(step, tensor(shape, element_of(step.results[0])), [result])
    rewriter.replace(op, result)
    return True


def _passes(op: ir.Operation) -> bool:
    """True if `op` computes each element from one element of its only operand."""
    return len(op.operands) == 1 and (op.name == _TRANSPOSE or op.name in ELEMENTWISE)


ReduceScatterRedirect.patterns = (on(AllToAllOp, redirect),)
