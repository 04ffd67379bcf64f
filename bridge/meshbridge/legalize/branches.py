"""Folds branches with a constant index, so that dead code is gone before shardings are decided."""

from __future__ import annotations

from meshbridge.analysis.known_values import branch
from meshbridge.ir.mlir import ir
from meshbridge.legalize.table import Legalizer, rewrites


@rewrites("stablehlo.case", "stablehlo.if")
def fold_cases(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Replaces a `case` or `if` with a constant index by the branch that runs.

    Input:   %which = stablehlo.constant dense<1> : tensor<i32>
             %0 = "stablehlo.case"(%which) ({
               %1 = stablehlo.sine %x : tensor<8xf32>
               stablehlo.return %1 : tensor<8xf32>
             }, {
               %1 = stablehlo.cosine %x : tensor<8xf32>
               stablehlo.return %1 : tensor<8xf32>
             }) : (tensor<i32>) -> tensor<8xf32>
    Output:  %0 = stablehlo.cosine %x : tensor<8xf32>

    Code for several platforms has a `case` on the platform's index.
    """
    index = branch(op)
    if index is None:
        return False
    views = list(op.regions[index].blocks[0].operations)
    for view in views[:-1]:
        view.operation.move_before(op)
    yielded = list(views[-1].operation.operands)
    for region in op.regions:
        region.blocks[0].operations[len(region.blocks[0].operations) - 1].operation.erase()  # else it would count as a reader
    rewriter.replace(op, *yielded)
    return True
