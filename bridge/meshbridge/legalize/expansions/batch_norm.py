"""Batch normalisation in elementwise ops and sums over all dimensions but the feature's (StableHLO's specification)."""

from __future__ import annotations

from math import prod

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.legalize.table import replaces
from meshbridge.ops.rule import shape_of


class _Features:
    """One op's feature dimension: sums over the others, and vectors of features spread over them."""

    def __init__(self, op: ir.Operation) -> None:
        self.operand = op.operands[0]
        self.emit = Builder.before(op)
        self.dim = int(ir.IntegerAttr(op.attributes["feature_index"]).value)
        self.epsilon = float(ir.FloatAttr(op.attributes["epsilon"]).value)
        self.others = [dim for dim in range(len(shape_of(self.operand))) if dim != self.dim]
        self.count = prod(shape_of(self.operand)[dim] for dim in self.others)

    def spread(self, features: ir.Value) -> ir.Value:
        return self.emit.broadcast(features, shape_of(self.operand), [self.dim])

    def total(self, value: ir.Value) -> ir.Value:
        return self.emit.reduce(value, 0, self.others, "add")

    def mean(self, value: ir.Value) -> ir.Value:
        return self.emit.elementwise("divide", self.total(value), self.count)

    def centred(self, mean: ir.Value) -> ir.Value:
        return self.emit.subtract(self.operand, self.spread(mean))

    def deviation(self, variance: ir.Value) -> ir.Value:
        """The standard deviation, never zero."""
        return self.emit.elementwise("sqrt", self.emit.add(variance, self.epsilon))

    def normalised(self, scale: ir.Value, offset: ir.Value, mean: ir.Value, variance: ir.Value) -> ir.Value:
        emit = self.emit
        unit = emit.elementwise("divide", self.centred(mean), self.spread(self.deviation(variance)))
        return emit.add(emit.multiply(unit, self.spread(scale)), self.spread(offset))


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
    centred = features.centred(mean)
    variance = features.mean(features.emit.multiply(centred, centred))
    return [features.normalised(scale, offset, mean, variance), mean, variance]


@replaces("stablehlo.batch_norm_grad")
def expand_batch_norm_gradient(op: ir.Operation) -> list[ir.Value]:
    """The gradients of training for operand, scale and offset."""
    features = _Features(op)
    emit, (_, scale, mean, variance, cotangent) = features.emit, op.operands
    centred, deviation = features.centred(mean), features.deviation(variance)
    grad_offset = features.total(cotangent)
    products = features.total(emit.multiply(cotangent, centred))
    along_centre = emit.elementwise("divide", products, emit.add(variance, features.epsilon))
    inner = emit.subtract(
        emit.subtract(emit.multiply(cotangent, features.count), features.spread(grad_offset)),
        emit.multiply(centred, features.spread(along_centre)),
    )
    share = emit.elementwise("divide", scale, emit.multiply(deviation, features.count))
    return [emit.multiply(features.spread(share), inner), emit.elementwise("divide", products, deviation), grad_offset]
