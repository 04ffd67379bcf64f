"""`reduce-scatter-reassociate`: compute first, reduce-scatter once (the RFC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives import joins
from meshbridge.collectives.rewriter import MeshPattern, MeshRewriter, PatternPass, sharing_key
from meshbridge.dialect import build
from meshbridge.dialect.ops import ReduceScatterOp
from meshbridge.dialect.signature import element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register


@register
@dataclass(frozen=True)
class ReduceScatterReassociate(PatternPass):
    """Makes one reduce-scatter of several whose results an operation joins that commutes with them (`joins.JOINS`).

    Input:   %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = mesh.reduce_scatter %y on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = stablehlo.add %0, %1 : tensor<2xf32>
    Output:  %0 = stablehlo.add %x, %y : tensor<4xf32>
             %2 = mesh.reduce_scatter %0 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    The order of axes counts: it says which device gets which piece.
    """

    name: ClassVar[str] = "reduce-scatter-reassociate"


def reassociate(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the reduce-scatters that `op` reads below it."""
    operands = list(op.operands)
    found = [rewriter.collective(operand, ReduceScatterOp, op) for operand in operands]
    pieces = [each for each in found if each is not None and joins.keeps_type(each)]
    if (
        len(pieces) != len(operands)
        or len({(sharing_key(each.operation), each.scatter_axis, each.input.type) for each in pieces}) != 1
    ):
        return False
    if any(rewriter.uses(value) != operands.count(value) for value in operands):
        return False
    first, source = pieces[0], pieces[0].input.type
    if not joins.joins(op.name, first.reduction, element_of(source)):
        return False
    location = first.operation.location
    mesh, axes, dim, kind = rewriter.meshes[first.mesh], first.mesh_axes, first.scatter_axis, first.reduction
    for number, value in enumerate([each.input for each in pieces]):
        rewriter.feed(op, number, value)
    op.results[0].set_type(source)
    rewriter.put_after(
        op, location, lambda value: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind)
    )
    return True


ReduceScatterReassociate.patterns = (MeshPattern((ReduceScatterOp.OPERATION_NAME,), reassociate, joins.NAMES),)
