"""`all-reduce-reassociate`: computes first and reduces once (the RFC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.collectives import commuting_ops
from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on, sharing_key
from meshbridge.dialect import build
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp
from meshbridge.dialect.signature import element_of
from meshbridge.ir.elements import neutral, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.traits import Trait, linear_operands, multilinear_operands, ops_with


@register
@dataclass(frozen=True)
class AllReduceReassociate(PatternPass):
    """Moves all-reduces below operations that commute with them, if they become fewer or no larger.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.add %0, %1 : tensor<4xf32>
    Output:  %0 = stablehlo.add %x, %y : tensor<4xf32>
             %2 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>

    Operations on two all-reduces: `commuting_ops.COMMUTING`, and `concatenate`. On one: those that rearrange or drop elements, a
    `reduce` of the same kind, and for sums also `negate`, `real`, `imag`, scaling and `dot_general` by replicated values. An
    all-reduce with other uses stays, and so does one that would become larger.
    """

    name: ClassVar[str] = "all-reduce-reassociate"


def reassociate(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-reduces that `op` reads below it, if they commute with it and become fewer or no larger."""
    operands = list(op.operands)
    totals = [rewriter.collective(operand, AllReduceOp, op) for operand in operands]
    template = next((total for total in totals if total is not None), None)
    if template is None or not commuting_ops.keeps_type(template):
        return False
    if any(
        total is not None and rewriter.uses(value) != operands.count(value) for total, value in zip(totals, operands, strict=True)
    ):
        return False
    alike = [
        total is not None and commuting_ops.keeps_type(total) and sharing_key(total.operation) == sharing_key(template.operation)
        for total in totals
    ]
    if not (_commutes_with_all(op, template, alike) or _commutes_with_one(op, template, totals, alike, rewriter)):
        return False
    mesh, axes, kind = rewriter.meshes[template.mesh], template.mesh_axes, template.reduction
    location = template.operation.location
    inputs = [total.input if total is not None else None for total in totals]
    for number, value in enumerate(inputs):
        if value is not None:
            rewriter.set_operand(op, number, value)
    rewriter.replace_after(op, location, lambda value: build.all_reduce(value, mesh, mesh_axes=axes, reduction=kind))
    return True


def _commutes_with_all(op: ir.Operation, total: AllReduceOp, alike: list[bool]) -> bool:
    if op.name == "stablehlo.concatenate":
        return all(alike) and total.reduction != "generic"
    return all(alike) and commuting_ops.commutes(op.name, total.reduction, element_of(total.input.type))


def _commutes_with_one(
    op: ir.Operation, total: AllReduceOp, totals: list[AllReduceOp | None], alike: list[bool], rewriter: MeshRewriter
) -> bool:
    """True if `op` commutes with the only all-reduce among its operands."""
    if sum(operand_total is not None for operand_total in totals) != 1:
        return False
    kind, element, number = total.reduction, element_of(total.input.type), alike.index(True)
    if op.name in _REARRANGING:
        return kind != "generic"
    if op.name == "stablehlo.reduce":
        is_alone = len(totals) == 2 and number == 0 and body_kind(op) == kind
        return is_alone and is_splat(op.operands[1], neutral(kind, element))
    if kind not in ("sum", "average") or (kind == "average" and is_integer(element)):
        return False
    if op.name in _SCALING:
        scale = op.operands[1 - number]
        exact = op.name != "stablehlo.divide" or not is_integer(element)
        return number in multilinear_operands(op.name) and exact and rewriter.is_replicated(scale, total.mesh, total.mesh_axes)
    if op.name == "stablehlo.dot_general":
        smaller = type_bytes(op.results[0].type) <= type_bytes(total.input.type)
        return smaller and rewriter.is_replicated(op.operands[1 - number], total.mesh, total.mesh_axes)
    return op.name in _LINEAR


_REARRANGING = ops_with(Trait.SHAPING, Trait.STRIDED) - {"stablehlo.broadcast_in_dim", "stablehlo.pad"}
"""Ops that compute nothing commute with any reduction. These do not enlarge its operand."""

_LINEAR = frozenset(name for name in ops_with(Trait.ELEMENTWISE) if linear_operands(name) == (0,))

_SCALING = ops_with(Trait.ELEMENTWISE) & ops_with(Trait.MULTILINEAR)
"""Ops of which one operand may be a sum and the other scales it."""

_READERS = commuting_ops.NAMES | ops_with(Trait.LINEAR, Trait.MULTILINEAR) | {"stablehlo.reduce"}

AllReduceReassociate.patterns = (on(AllReduceOp, reassociate, _READERS),)
