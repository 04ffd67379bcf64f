"""Batch normalisation in elementwise ops and sums over all dimensions but the feature's (StableHLO's specification)."""

from __future__ import annotations

from math import prod

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.expansions.einsum import sum_over
from meshbridge.legalize.table import replaces
from meshbridge.ops.rule import shape_of


class _Features:
    """One op's feature dimension: sums over the others, and vectors of features broadcast over them."""

    def __init__(self, op: ir.Operation) -> None:
        self.operand = op.operands[0]
        self.dim = int(ir.IntegerAttr(op.attributes["feature_index"]).value)
        self.epsilon = float(ir.FloatAttr(op.attributes["epsilon"]).value)
        self.others = [dim for dim in range(len(shape_of(self.operand))) if dim != self.dim]
        self.count = prod(shape_of(self.operand)[dim] for dim in self.others)

    def spread(self, features: ir.Value) -> ir.Value:
        return stablehlo.broadcast_in_dim(self.operand.type, features, ir.DenseI64ArrayAttr.get([self.dim]))

    def total(self, value: ir.Value) -> ir.Value:
        return sum_over(value, self.others)

    def mean(self, value: ir.Value) -> ir.Value:
        total = self.total(value)
        return stablehlo.divide(total, Builder.current().splat(total.type, self.count))

    def deviation(self, variance: ir.Value) -> ir.Value:
        """The standard deviation, never zero."""
        return stablehlo.sqrt(stablehlo.add(variance, Builder.current().splat(variance.type, self.epsilon)))

    def normalised(self, scale: ir.Value, offset: ir.Value, mean: ir.Value, variance: ir.Value) -> ir.Value:
        centred = stablehlo.subtract(self.operand, self.spread(mean))
        scaled = stablehlo.multiply(stablehlo.divide(centred, self.spread(self.deviation(variance))), self.spread(scale))
        return stablehlo.add(scaled, self.spread(offset))


@replaces("stablehlo.batch_norm_inference")
def expand_batch_norm_inference(op: ir.Operation) -> list[ir.Value]:
    """scale * (operand - mean) / sqrt(variance + epsilon) + offset."""
    _, scale, offset, mean, variance = op.operands
    return [_Features(op).normalised(scale, offset, mean, variance)]


@replaces("stablehlo.batch_norm_training")
def expand_batch_norm_training(op: ir.Operation) -> list[ir.Value]:
    """The same with the batch's own mean and variance, which are results too."""
    features = _Features(op)
    _, scale, offset = op.operands
    mean = features.mean(features.operand)
    centred = stablehlo.subtract(features.operand, features.spread(mean))
    variance = features.mean(stablehlo.multiply(centred, centred))
    return [features.normalised(scale, offset, mean, variance), mean, variance]


@replaces("stablehlo.batch_norm_grad")
def expand_batch_norm_gradient(op: ir.Operation) -> list[ir.Value]:
    """The gradients of training for operand, scale and offset."""
    features = _Features(op)
    operand, scale, mean, variance, cotangent = op.operands
    centred = stablehlo.subtract(operand, features.spread(mean))
    deviation = features.deviation(variance)
    grad_offset = features.total(cotangent)
    products = features.total(stablehlo.multiply(cotangent, centred))
    grad_scale = stablehlo.divide(products, deviation)
    count = Builder.current().splat(operand.type, features.count)
    along_centre = stablehlo.divide(products, stablehlo.add(variance, Builder.current().splat(variance.type, features.epsilon)))
    inner = stablehlo.subtract(
        stablehlo.subtract(stablehlo.multiply(count, cotangent), features.spread(grad_offset)),
        stablehlo.multiply(centred, features.spread(along_centre)),
    )
    share = stablehlo.divide(scale, stablehlo.multiply(deviation, Builder.current().splat(deviation.type, features.count)))
    return [stablehlo.multiply(features.spread(share), inner), grad_scale, grad_offset]
