"""One copy per use of whatever costs nothing to make, so that each use can be sharded for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import RewritePass, register


@register
@dataclass(frozen=True)
class SplitConstants(RewritePass):
    """Gives every use of a splat constant, an iota or a broadcast scalar a copy of its own.

    Input:   %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             "use"(%0), "use"(%0)
    Output:  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             "use"(%0), "use"(%1)

    A value that two uses want in different shardings would otherwise be moved between devices.
    """

    name: ClassVar[str] = "split-constants"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.iota"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        more = [(op, list(op.results[0].uses)[1:]) for op in ops if _is_free(op)]
        for op, uses in more:
            for use in uses:
                copy = op.clone(ip=ir.InsertionPoint(op)).operation
                use.owner.operation.operands[use.operand_number] = copy.results[0]
        return any(uses for _, uses in more)


def _is_free(op: ir.Operation) -> bool:
    if op.name == "stablehlo.constant":
        value = op.attributes["value"]
        return ir.RankedTensorType(op.results[0].type).rank > 0 and isinstance(value, ir.DenseElementsAttr) and value.is_splat
    if op.name == "stablehlo.broadcast_in_dim":
        return ir.RankedTensorType(op.operands[0].type).rank == 0
    return op.name == "stablehlo.iota"
