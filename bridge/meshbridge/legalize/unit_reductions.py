"""Reductions over dimensions of size 1."""

from __future__ import annotations

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.legalize.table import replaces
from meshbridge.ops.reductions import body_kind


@replaces("stablehlo.reduce", where=lambda op: len(op.results) == 1)
def reshape_unit_reductions(op: ir.Operation) -> tuple[ir.Value] | None:
    """Makes a reduction that reduces nothing a reshape, which collectives move across and loops accumulate through.

    Input:   %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, …)
    Output:  %0 = stablehlo.reshape %x : (tensor<1x8xf32>) -> tensor<8xf32>

    XLA does the same: a negative zero stays negative.
    """
    operand, initial = op.operands
    shape = shape_of(operand)
    kind = body_kind(op)
    if not kind or DYNAMIC in shape or any(shape[dim] != 1 for dim in integers(op.attributes["dimensions"])):
        return None
    if not is_splat(initial, neutral(kind, ir.RankedTensorType(operand.type).element_type)):
        return None
    return (Builder.before(op).reshape(operand, shape_of(op.results[0])),)
