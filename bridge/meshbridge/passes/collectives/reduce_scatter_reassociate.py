"""`reduce-scatter-reassociate`: compute first, reduce-scatter once (seed 000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.ops import ReduceScatterOp
from meshbridge.dialect.signature import element_of
from meshbridge.mlir import ir
from meshbridge.passes.base import Pass, register
from meshbridge.passes.collectives import joins
from meshbridge.passes.collectives.rewriter import Rewriter, rewriting
from meshbridge.sharding import Axes


@register
@dataclass(frozen=True)
class ReduceScatterReassociate(Pass):
    """Makes one reduce-scatter of several whose results an operation joins that commutes with them (`joins.JOINS`).

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = mesh.reduce_scatter %y on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = stablehlo.add %0, %1 : tensor<2xf32>
    Output:  %0 = stablehlo.add %x, %y : tensor<4xf32>
             %2 = mesh.reduce_scatter %0 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    The order of axes counts: it says which device gets which piece.
    """

    name: ClassVar[str] = "reduce-scatter-reassociate"

    def run(self, module: ir.Module) -> None:
        with rewriting(module, {ReduceScatterOp.OPERATION_NAME}) as rewriter:
            for op, block in rewriter.ops:
                if op.name in joins.NAMES:
                    _reassociate(op, block, rewriter)


def _reassociate(op: ir.Operation, block: int, rewriter: Rewriter) -> None:
    operands = list(op.operands)
    found = [rewriter.collective(operand, ReduceScatterOp, block) for operand in operands]
    pieces = [each for each in found if each is not None and joins.keeps_type(each)]
    if len(pieces) != len(operands) or len({_key(each) for each in pieces}) != 1:
        return
    if any(rewriter.uses(value) != operands.count(value) for value in operands):
        return
    first, source = pieces[0], pieces[0].input.type
    if not joins.joins(op.name, first.reduction, element_of(source)):
        return
    mesh, axes, dim, kind = rewriter.meshes[first.mesh], first.mesh_axes, first.scatter_axis, first.reduction
    for number, value in enumerate([each.input for each in pieces]):
        rewriter.feed(op, number, value)
    op.results[0].set_type(source)
    rewriter.put_after(
        op, block, lambda value: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind)
    )


def _key(scatter: ReduceScatterOp) -> tuple[str, Axes, int, str, ir.Type]:
    """What reduce-scatters must share to become one."""
    return scatter.mesh, scatter.mesh_axes, scatter.scatter_axis, scatter.reduction, scatter.input.type
