"""`all-reduce-reassociate`: compute first, reduce once (the RFC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.collectives import joins
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
    """Moves all-reduces below operations that commute with them, where they become fewer or no larger.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.add %0, %1 : tensor<4xf32>
    Output:  %0 = stablehlo.add %x, %y : tensor<4xf32>
             %2 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>

    Operations of two all-reduces: `joins.JOINS`, and `concatenate`. Of one: those that rearrange or drop elements, for sums also
    `negate`, `real`, `imag`, scaling and `dot_general` by what all devices of a group hold alike, and a `reduce` of the same
    kind. An all-reduce that something else uses stays where it is, and so does one that would become larger.
    """

    name: ClassVar[str] = "all-reduce-reassociate"


def reassociate(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-reduces that `op` reads below it, if that keeps the value and they become fewer or no larger."""
    operands = list(op.operands)
    found = [rewriter.collective(operand, AllReduceOp, op) for operand in operands]
    first = next((each for each in found if each is not None), None)
    if first is None or not joins.keeps_type(first):
        return False
    if any(
        each is not None and rewriter.uses(value) != operands.count(value) for each, value in zip(found, operands, strict=True)
    ):
        return False
    alike = [
        each is not None and joins.keeps_type(each) and sharing_key(each.operation) == sharing_key(first.operation)
        for each in found
    ]
    if not (_joins_all(op, first, alike) or _passes_one(op, first, found, alike, rewriter)):
        return False
    mesh, axes, kind = rewriter.meshes[first.mesh], first.mesh_axes, first.reduction
    location = first.operation.location
    inputs = [each.input if each is not None else None for each in found]
    for number, value in enumerate(inputs):
        if value is not None:
            rewriter.feed(op, number, value)
    rewriter.put_after(op, location, lambda value: build.all_reduce(value, mesh, mesh_axes=axes, reduction=kind))
    return True


def _joins_all(op: ir.Operation, first: AllReduceOp, alike: list[bool]) -> bool:
    if op.name == "stablehlo.concatenate":
        return all(alike) and first.reduction != "generic"
    return all(alike) and joins.joins(op.name, first.reduction, element_of(first.input.type))


def _passes_one(
    op: ir.Operation, first: AllReduceOp, found: list[AllReduceOp | None], alike: list[bool], rewriter: MeshRewriter
) -> bool:
    """Whether `op` commutes with the one all-reduce among its operands."""
    if sum(each is not None for each in found) != 1:
        return False
    kind, element, number = first.reduction, element_of(first.input.type), alike.index(True)
    if op.name in _REARRANGING:
        return kind != "generic"
    if op.name == "stablehlo.reduce":
        same = len(found) == 2 and number == 0 and body_kind(op) == kind
        return same and is_splat(op.operands[1], neutral(kind, element))
    if kind not in ("sum", "average") or (kind == "average" and is_integer(element)):
        return False
    if op.name in _SCALING:
        scale = op.operands[1 - number]
        exact = op.name != "stablehlo.divide" or not is_integer(element)
        return number in multilinear_operands(op.name) and exact and rewriter.is_replicated(scale, first.mesh, first.mesh_axes)
    if op.name == "stablehlo.dot_general":
        smaller = type_bytes(op.results[0].type) <= type_bytes(first.input.type)
        return smaller and rewriter.is_replicated(op.operands[1 - number], first.mesh, first.mesh_axes)
    return op.name in _LINEAR


_REARRANGING = ops_with(Trait.SHAPING, Trait.STRIDED) - {"stablehlo.broadcast_in_dim", "stablehlo.pad"}
"""They compute nothing, so that they commute with any reduction, and make its operand no larger."""

_LINEAR = frozenset(name for name in ops_with(Trait.ELEMENTWISE) if linear_operands(name) == (0,))

_SCALING = ops_with(Trait.ELEMENTWISE) & ops_with(Trait.MULTILINEAR)
"""Those of which an operand may be a sum if the other one scales it."""

_READERS = joins.NAMES | ops_with(Trait.LINEAR, Trait.MULTILINEAR) | {"stablehlo.reduce"}

AllReduceReassociate.patterns = (on(AllReduceOp, reassociate, _READERS),)
