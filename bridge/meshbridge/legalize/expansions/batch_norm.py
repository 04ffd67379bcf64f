"""Expands batch normalisation to elementwise ops and sums over all dimensions but the feature's (StableHLO's specification)."""

from __future__ import annotations

from math import prod

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.legalize.table import replaces
from meshbridge.ops.rule import shape_of


class _Features:
    """The feature dimension of an op: sums over the other dimensions, and broadcasts of feature vectors along them."""

    def __init__(self, op: ir.Operation) -> None:
        self.operand = op.operands[0]
        self.builder = Builder.before(op)
        self.dim = int(ir.IntegerAttr(op.attributes["feature_index"]).value)
        self.epsilon = float(ir.FloatAttr(op.attributes["epsilon"]).value)
        self.reduced_dims = [dim for dim in range(len(shape_of(self.operand))) if dim != self.dim]
        self.count = prod(shape_of(self.operand)[dim] for dim in self.reduced_dims)

    def broadcast(self, features: ir.Value) -> ir.Value:
        return self.builder.broadcast(features, shape_of(self.operand), [self.dim])

    def total(self, value: ir.Value) -> ir.Value:
        return self.builder.reduce(value, 0, self.reduced_dims, "add")

    def mean(self, value: ir.Value) -> ir.Value:
        return self.builder.elementwise("divide", self.total(value), self.count)

    def centred(self, mean: ir.Value) -> ir.Value:
        return self.builder.subtract(self.operand, self.broadcast(mean))

    def deviation(self, variance: ir.Value) -> ir.Value:
        """The standard deviation, kept above zero by epsilon."""
        return self.builder.elementwise("sqrt", self.builder.add(variance, self.epsilon))

    def normalised(self, scale: ir.Value, offset: ir.Value, mean: ir.Value, variance: ir.Value) -> ir.Value:
        builder = self.builder
        unit = builder.elementwise("divide", self.centred(mean), self.broadcast(self.deviation(variance)))
        return builder.add(builder.multiply(unit, self.broadcast(scale)), self.broadcast(offset))


@replaces("stablehlo.batch_norm_inference")
def expand_batch_norm_inference(op: ir.Operation) -> list[ir.Value]:
    """scale * (operand - mean) / sqrt(variance + epsilon) + offset."""
    _, scale, offset, mean, variance = op.operands
    return [_Features(op).normalised(scale, offset, mean, variance)]


@replaces("stablehlo.batch_norm_training")
def expand_batch_norm_training(op: ir.Operation) -> list[ir.Value]:
    """Inference with the batch's own mean and variance, which are also results."""
    features = _Features(op)
    _, scale, offset = op.operands
    mean = features.mean(features.operand)
    centred = features.centred(mean)
    variance = features.mean(features.builder.multiply(centred, centred))
    return [features.normalised(scale, offset, mean, variance), mean, variance]


@replaces("stablehlo.batch_norm_grad")
def expand_batch_norm_gradient(op: ir.Operation) -> list[ir.Value]:
    """The gradients of training with respect to operand, scale and offset."""
    features = _Features(op)
    builder, (_, scale, mean, variance, cotangent) = features.builder, op.operands
    centred, deviation = features.centred(mean), features.deviation(variance)
    grad_offset = features.total(cotangent)
    products = features.total(builder.multiply(cotangent, centred))
    along_centre = builder.elementwise("divide", products, builder.add(variance, features.epsilon))
    inner = builder.subtract(
        builder.subtract(builder.multiply(cotangent, features.count), features.broadcast(grad_offset)),
        builder.multiply(centred, features.broadcast(along_centre)),
    )
    share = builder.elementwise("divide", scale, builder.multiply(deviation, features.count))
    return [builder.multiply(features.broadcast(share), inner), builder.elementwise("divide", products, deviation), grad_offset]
