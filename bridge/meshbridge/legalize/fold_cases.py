"""Branches that constants choose: what never runs is gone before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import branch
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import RewritePass, register


@register
@dataclass(frozen=True)
class FoldCases(RewritePass):
    """Replaces every `case` and `if` that a constant chooses the branch of by that branch.

    Input:   %which = stablehlo.constant dense<1> : tensor<i32>
             %0 = "stablehlo.case"(%which) ({
               %1 = stablehlo.sine %x : tensor<8xf32>
               stablehlo.return %1 : tensor<8xf32>
             }, {
               %1 = stablehlo.cosine %x : tensor<8xf32>
               stablehlo.return %1 : tensor<8xf32>
             }) : (tensor<i32>) -> tensor<8xf32>
    Output:  %which = stablehlo.constant dense<1> : tensor<i32>
             %0 = stablehlo.cosine %x : tensor<8xf32>

    Code for several platforms chooses between them by a `case` on the platform's index.
    """

    name: ClassVar[str] = "fold-cases"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.case", "stablehlo.if"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        return any(branch(op) is not None for op in ops) and fold(list(module.body.operations))


def fold(views: list[ir.OpView]) -> bool:
    """Folds in program order, so that a branch that was chosen may choose the next one; says whether there was any.

    What a chosen branch holds is folded in its turn; the others are never looked at.
    """
    changed = False
    pending = list(reversed(views))
    while pending:
        op = pending.pop().operation
        index = branch(op) if op.name in FoldCases.rewrites else None
        if index is not None:
            moved = _take(op, index)
            pending += reversed(moved)
            changed = True
        else:
            inner = [view for region in op.regions for block in region.blocks for view in block.operations]
            pending += reversed(inner)
    return changed


def _take(op: ir.Operation, index: int) -> list[ir.OpView]:
    """Moves the ops of a branch to where `op` stands, in its place; returns them."""
    views: list[ir.OpView] = list(op.regions[index].blocks[0].operations)
    ending = views.pop()
    for view in views:
        view.operation.move_before(op)
    for result, value in zip(list(op.results), list(ending.operation.operands), strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    return views
