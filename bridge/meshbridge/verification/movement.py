"""Ops that move elements without changing them: reshapes, transposes, slices, paddings, concatenations."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, element_of, evaluates, integer, integers, shape_of


@evaluates("stablehlo.reshape", "stablehlo.dynamic_reshape")
def reshape(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The same elements in row-major order."""
    return [operands[0].reshape(operands[0].shape[0], *shape_of(op.results[0]))]


@evaluates("mhlo.bitcast")
def bitcast_layout(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The same elements in memory order; layouts list dimensions from inner to outer."""
    if element_of(op.operands[0]) != element_of(op.results[0]):
        raise OpError(op, "reads elements of another type out of memory, which has no exact evaluation")
    outer_first = [[dim + 1 for dim in reversed(integers(op, name))] for name in ("source_layout", "result_layout")]
    stored = operands[0].transpose(0, *outer_first[0])
    shape = shape_of(op.results[0])
    reordered = stored.reshape(stored.shape[0], *(shape[dim - 1] for dim in outer_first[1]))
    return [reordered.transpose(np.argsort([0, *outer_first[1]]))]


@evaluates("stablehlo.transpose")
def transpose(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Result dimension i is operand dimension permutation[i]."""
    return [operands[0].transpose(0, *(dim + 1 for dim in integers(op, "permutation")))]


@evaluates("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def broadcast_in_dim(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Operand dimension i is result dimension broadcast_dimensions[i]."""
    shape, x = shape_of(op.results[0]), operands[0]
    dims = integers(op, "broadcast_dimensions")
    order = sorted(range(len(dims)), key=lambda index: dims[index])
    x = x.transpose(0, *(index + 1 for index in order))
    placed = [1] * len(shape)
    for position, index in enumerate(order):
        placed[dims[index]] = x.shape[position + 1]
    return [np.broadcast_to(x.reshape(x.shape[0], *placed), (x.shape[0], *shape))]


@evaluates("stablehlo.broadcast")
def broadcast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """New dimensions in front."""
    shape, x = shape_of(op.results[0]), operands[0]
    added = (1,) * (len(shape) + 1 - x.ndim)
    return [np.broadcast_to(x.reshape(x.shape[0], *added, *x.shape[1:]), (x.shape[0], *shape))]


@evaluates("stablehlo.slice")
def slice_(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every stride-th element from start to limit."""
    bounds = zip(integers(op, "start_indices"), integers(op, "limit_indices"), integers(op, "strides"), strict=True)
    return [operands[0][(slice(None), *(slice(*bound) for bound in bounds))]]


@evaluates("stablehlo.reverse")
def reverse(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Reverses some dimensions."""
    return [np.flip(operands[0], tuple(dim + 1 for dim in integers(op, "dimensions")))]


@evaluates("stablehlo.concatenate")
def concatenate(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Concatenates along a dimension."""
    return [np.concatenate(align(*operands), axis=integer(op, "dimension") + 1)]


@evaluates("stablehlo.pad")
def pad(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Pads before, after and between elements; negative amounts crop."""
    x, value = align(*operands)
    low, high = integers(op, "edge_padding_low"), integers(op, "edge_padding_high")
    return [padded(x, value, low, high, integers(op, "interior_padding"))]


def padded(x: Array, value: Array, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...]) -> Array:
    """`x` with `value` (a scalar for each device) before, after and between its elements; negative amounts crop."""
    shape = [max(0, (size - 1) * (gap + 1) + 1) if size else 0 for size, gap in zip(x.shape[1:], interior, strict=True)]
    result = np.empty(
        (x.shape[0], *(before + size + after for before, size, after in zip(low, shape, high, strict=True))), x.dtype
    )
    result[...] = value.reshape(-1, *(1,) * len(shape))
    source, target = [slice(None)], [slice(None)]
    for before, size, gap, whole in zip(low, x.shape[1:], interior, result.shape[1:], strict=True):
        first_kept = max(0, -(before // (gap + 1)))  # the first element that is not cropped
        end = min(size, -((before - whole) // (gap + 1)))  # the element after the last one
        source.append(slice(first_kept, max(first_kept, end)))
        start = before + first_kept * (gap + 1)
        target.append(slice(start, start + max(0, end - first_kept) * (gap + 1), gap + 1))
    if result.size and all(part.stop > part.start for part in source[1:]):
        result[tuple(target)] = x[tuple(source)]
    return result


@evaluates("stablehlo.get_dimension_size")
def dimension_size(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A static size as a number."""
    return [np.array([shape_of(op.operands[0])[integer(op, "dimension")]], np.int32)]


@evaluates("stablehlo.optimization_barrier", "mhlo.copy", "sdy.propagation_barrier", "sdy.sharding_constraint", "sdy.reshard")
def identity(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Returns its operands."""
    return operands


@evaluates("sdy.sharding_group")
def nothing(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """An op without results."""
    return []


@evaluates("stablehlo.after_all", "stablehlo.create_token")
def token(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A value that only orders ops."""
    return [np.zeros(1, np.bool_)]
