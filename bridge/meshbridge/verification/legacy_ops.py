"""Ops that abbreviate several simpler ones: einsum, batch norms, map, index_select; and ops whose sizes are operands."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.contractions import arranged, product
from meshbridge.verification.elementwise import opaque
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, element_of, evaluates, integer, same_numbers, shape_of
from meshbridge.verification.movement import padded
from meshbridge.verification.reductions import run_scalars


@evaluates("stablehlo.map")
def map_(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Runs a region of scalars on each element."""
    return run_scalars(machine, op, 0, align(*operands))


@evaluates("stablehlo.einsum", "stablehlo.unary_einsum")
def einsum(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A sum of products by labels; a repeated label takes the diagonal of its operand."""
    operand_labels, wanted = ir.StringAttr(op.attributes["einsum_config"]).value.replace(" ", "").split("->")
    sides = [_diagonal(x, labels) for x, labels in zip(align(*operands), operand_labels.split(","), strict=True)]
    needed = [set(wanted).union(*(labels for m, (_, labels) in enumerate(sides) if m != n)) for n in range(len(sides))]
    summed = [_summed(machine, x, labels, kept_labels) for (x, labels), kept_labels in zip(sides, needed, strict=True)]
    if len(summed) == 1:
        x, labels = summed[0]
    else:
        x, labels = _product(machine, summed[0], summed[1], wanted, element_of(op.results[0]))
    return [x.transpose(0, *(labels.index(label) + 1 for label in wanted))]


def _diagonal(x: Array, labels: str) -> tuple[Array, str]:
    for label in labels:
        while labels.count(label) > 1:
            first_dim, second_dim = labels.index(label), labels.rindex(label)
            x = np.moveaxis(np.diagonal(x, axis1=first_dim + 1, axis2=second_dim + 1), -1, first_dim + 1)
            labels = labels[:second_dim] + labels[second_dim + 1 :]
    return x, labels


def _summed(machine: Evaluator, x: Array, labels: str, kept: set[str]) -> tuple[Array, str]:
    axes = tuple(index + 1 for index, label in enumerate(labels) if label not in kept)
    if not axes:
        return x, labels
    total = machine.field.sum(x, axes) if x.dtype.kind in "fc" else x.sum(axis=axes, dtype=x.dtype)
    return np.asarray(total), "".join(label for label in labels if label in kept)


def _product(
    machine: Evaluator, left: tuple[Array, str], right: tuple[Array, str], wanted: str, element: ir.Type
) -> tuple[Array, str]:
    (a, a_labels), (b, b_labels) = left, right
    common = [label for label in a_labels if label in b_labels]
    batch, inner = ([label for label in common if (label in wanted) == is_wanted] for is_wanted in (True, False))
    places = [[[labels.index(label) for label in part] for part in (batch, inner)] for labels in (a_labels, b_labels)]
    sizes = dict(zip(a_labels, a.shape[1:], strict=True)) | dict(zip(b_labels, b.shape[1:], strict=True))
    rows, columns = arranged(a, *places[0], contracted_last=True), arranged(b, *places[1], contracted_last=False)
    total = product(machine, rows, columns, element)
    labels = "".join((*batch, *(label for label in a_labels + b_labels if label not in common)))
    return total.reshape(total.shape[0], *(sizes[label] for label in labels)), labels


@evaluates("stablehlo.torch_index_select")
def index_select(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Slices of the operand at clamped indices along one dimension, for each batch."""
    x, indices = align(*operands)
    dim, batch = integer(op, "dim"), integer(op, "batch_dims")
    places = np.clip(indices.astype(np.int64), 0, x.shape[dim + 1] - 1)
    flat = places.reshape(*places.shape[: batch + 1], *(1,) * (dim - batch), -1, *(1,) * (x.ndim - dim - 2))
    shape = [*x.shape[: dim + 1], flat.shape[dim + 1], *x.shape[dim + 2 :]]
    selected = np.take_along_axis(x, np.broadcast_to(flat, shape), dim + 1)
    return [selected.reshape(x.shape[0], *shape_of(op.results[0]))]


def _channels(x: Array, op: ir.Operation, rank: int) -> Array:
    dim = integer(op, "feature_index")
    return x.reshape(x.shape[0], *(-1 if index == dim else 1 for index in range(rank)))


def _epsilon(machine: Evaluator, op: ir.Operation) -> float:
    value = np.float32(ir.FloatAttr(op.attributes["epsilon"]).value)
    return float(machine.field.from_floats(np.array(value)))


def _shared(machine: Evaluator, op: ir.Operation, x: Array) -> tuple[tuple[int, ...], float]:
    """The dimensions of `x` that a feature's statistics reduce, and one over the number of their elements."""
    axes = tuple(dim + 1 for dim in range(x.ndim - 1) if dim != integer(op, "feature_index"))
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return axes, machine.field.integer(pow(count, -1, machine.field.prime))


def _moments(machine: Evaluator, op: ir.Operation, x: Array) -> tuple[Array, Array]:
    """Mean and variance of each feature."""
    field, (axes, share) = machine.field, _shared(machine, op, x)
    mean = field.reduce(field.sum(x, axes) * share)
    centred = field.subtract(x, _channels(mean, op, x.ndim - 1))
    return mean, field.reduce(field.sum(field.multiply(centred, centred), axes) * share)


def _normalized(machine: Evaluator, op: ir.Operation, x: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """The operand less its mean over its deviation, and one over the deviation."""
    field, rank = machine.field, x.ndim - 1
    rate = field.inverse(opaque(field, "sqrt", field.reduce(_channels(variance, op, rank) + _epsilon(machine, op))))
    return field.multiply(field.subtract(x, _channels(mean, op, rank)), rate), rate


@evaluates("stablehlo.batch_norm_inference")
def batch_norm_inference(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Normalizes by the given mean and variance, scales and shifts."""
    x, scale, offset, mean, variance = operands
    field, rank = machine.field, x.ndim - 1
    normal, _ = _normalized(machine, op, x, mean, variance)
    return [field.add(field.multiply(normal, _channels(scale, op, rank)), _channels(offset, op, rank))]


@evaluates("stablehlo.batch_norm_training")
def batch_norm_training(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Normalizes by the mean and variance of the operand, which are also results."""
    x, scale, offset = operands
    mean, variance = _moments(machine, op, x)
    return [*batch_norm_inference(machine, op, [x, scale, offset, mean, variance]), mean, variance]


@evaluates("stablehlo.batch_norm_grad")
def batch_norm_grad(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The gradients of operand, scale and offset by StableHLO's formula: with 1 / (variance + epsilon), not a square of a
    root."""
    x, scale, mean, variance, gradient = operands
    field, rank = machine.field, x.ndim - 1
    axes, share = _shared(machine, op, x)
    normal, rate = _normalized(machine, op, x, mean, variance)
    by_scale, by_offset = field.sum(field.multiply(gradient, normal), axes), field.sum(gradient, axes)
    centred = field.subtract(x, _channels(mean, op, rank))
    along = field.sum(field.multiply(gradient, centred), axes)
    over = field.inverse(field.reduce(_channels(variance, op, rank) + _epsilon(machine, op)))
    turned = fold(field.multiply, [centred, field.reduce(_channels(along, op, rank) * share), over])
    pulled = field.subtract(gradient, field.reduce(_channels(by_offset, op, rank) * share))
    by_x = fold(field.multiply, [field.subtract(pulled, turned), _channels(scale, op, rank), rate])
    return [by_x, by_scale, by_offset]


@evaluates("stablehlo.dynamic_pad")
def dynamic_pad(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Pads by amounts that are operands."""
    x, value = align(*operands[:2])
    low, high, interior = (same_numbers(op, amount, "size") for amount in operands[2:])
    return [padded(x, value, low, high, interior)]
