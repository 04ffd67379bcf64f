"""`all-reduce-folder`: one all-reduce for two in a row (the RFC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on
from meshbridge.dialect import build
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp
from meshbridge.dialect.signature import element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ops.reductions import IDEMPOTENT


@register
@dataclass(frozen=True)
class AllReduceFolder(PatternPass):
    """Folds an all-reduce of an all-reduce into one over the axes of both.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
    Output:  %1 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>

    The first one must have no other use: it would stay, and the second would send more. An axis may be in both only for
    idempotent kinds (max, min, and, or).
    """

    name: ClassVar[str] = "all-reduce-folder"


def fold(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Folds the all-reduce that the all-reduce `op` reads into it."""
    outer = AllReduceOp(op)
    inner = rewriter.collective(outer.input, AllReduceOp, op)
    if inner is None or rewriter.uses(outer.input) != 1 or not _agree(inner, outer):
        return False
    axes = sorted({*inner.mesh_axes, *outer.mesh_axes})
    element = element_of(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        mesh = rewriter.meshes[outer.mesh]
        whole = build.all_reduce(inner.input, mesh, mesh_axes=axes, reduction=outer.reduction, element_type=element)
    rewriter.replace(op, whole)
    return True


AllReduceFolder.patterns = (on(AllReduceOp, fold),)


def _agree(inner: AllReduceOp, outer: AllReduceOp) -> bool:
    """True if both perform the same reduction. An average of integers rounds, so it cannot be taken over more devices at once."""
    kind, element = outer.reduction, element_of(outer.input.type)
    if (inner.mesh, inner.reduction, element) != (outer.mesh, kind, element_of(outer.operation.results[0].type)):
        return False
    if kind == "generic" or (kind == "average" and is_integer(element)):
        return False
    return kind in IDEMPOTENT or not set(inner.mesh_axes) & set(outer.mesh_axes)
