"""Ops that read and write at computed positions: gather, scatter, dynamic slices and updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, evaluates, integers, same_numbers, shape_of
from meshbridge.verification.reductions import combiner_of


def _devices(x: Array, rank: int) -> Array:
    """The number of each device's entry in `x`, to index together with `rank` further dimensions."""
    return np.arange(x.shape[0]).reshape(-1, *(1,) * rank)


def _vectors(indices: Array, index_vector_dim: int) -> Array:
    """Start indices with the index vector in the last dimension, as int64."""
    if index_vector_dim == indices.ndim - 1:
        indices = indices[..., None]
    return np.moveaxis(indices, index_vector_dim + 1, -1).astype(np.int64)


def _beside(part: Array, own: Sequence[int], rank: int) -> Array:
    """Reshapes `part` (devices and then `own` dimensions of a tensor of `rank`) to broadcast within that tensor."""
    shape = [1] * rank
    for dim, size in zip(own, part.shape[1:], strict=True):
        shape[dim] = size
    return part.reshape(part.shape[0], *shape)


@evaluates("stablehlo.gather", "stablehlo.dynamic_gather")
def gather(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Slices at clamped starts."""
    x, indices = operands[:2]
    dims = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = integers(op, "slice_sizes") if len(operands) == 2 else tuple(int(size) for size in operands[2][0])
    rank = len(shape_of(op.results[0]))
    vectors = _vectors(indices, dims.index_vector_dim)
    batch = [dim for dim in range(rank) if dim not in dims.offset_dims]
    inner = [dim for dim in range(len(sizes)) if dim not in (*dims.collapsed_slice_dims, *dims.operand_batching_dims)]
    places: list[Array] = []
    for dim, size in enumerate(sizes):
        place = np.zeros((1, *(1,) * rank), np.int64)
        if dim in dims.start_index_map:
            start = vectors[..., list(dims.start_index_map).index(dim)]
            place = _beside(np.clip(start, 0, x.shape[dim + 1] - size), batch, rank)
        if dim in dims.operand_batching_dims:
            position = _batch_position(dims.start_indices_batching_dims, dims.operand_batching_dims, dim, dims.index_vector_dim)
            place = place + _counting(vectors.shape[position + 1], batch[position], rank)
        if dim in inner:
            place = place + _counting(size, dims.offset_dims[inner.index(dim)], rank)
        places.append(place)
    device = _devices(x, rank)
    gathered = x[(device, *places)] if places else x
    count = max(x.shape[0], indices.shape[0])
    return [np.broadcast_to(gathered, (count if gathered.shape[0] > 1 else 1, *shape_of(op.results[0])))]


def _batch_position(of_indices: list[int], of_operand: list[int], dim: int, index_vector_dim: int) -> int:
    """The batch dimension of the index vectors for the operand's dimension `dim`."""
    position = of_indices[list(of_operand).index(dim)]
    return position - (position > index_vector_dim)


def _counting(size: int, dim: int, rank: int) -> Array:
    return np.arange(size).reshape(1, *(-1 if index == dim else 1 for index in range(rank)))


@evaluates("stablehlo.scatter")
def scatter(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Combines updates into the operand. A window that is partly outside is dropped entirely, as in XLA; StableHLO's
    specification drops only the part outside."""
    half = len(operands) // 2
    operands = align(*operands)
    x, indices, updates = operands[0], operands[half], operands[half + 1]
    dims = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    rank = updates.ndim - 1
    vectors = _vectors(indices, dims.index_vector_dim)
    batch = [dim for dim in range(rank) if dim not in dims.update_window_dims]
    inner = [dim for dim in range(x.ndim - 1) if dim not in (*dims.inserted_window_dims, *dims.input_batching_dims)]
    flat = _devices(x, rank)
    inside = np.ones((1,) * (rank + 1), np.bool_)
    for dim, size in enumerate(x.shape[1:]):
        place, extent = np.zeros((1, *(1,) * rank), np.int64), 1
        if dim in dims.scattered_dims_to_operand_dims:
            start = vectors[..., list(dims.scattered_dims_to_operand_dims).index(dim)]
            place = _beside(start, batch, rank)
        if dim in dims.input_batching_dims:
            at = _batch_position(dims.scatter_indices_batching_dims, dims.input_batching_dims, dim, dims.index_vector_dim)
            place = place + _counting(vectors.shape[at + 1], batch[at], rank)
        if dim in inner:
            window = dims.update_window_dims[inner.index(dim)]
            extent = updates.shape[window + 1]
        inside = inside & (place >= 0) & (place <= size - extent)
        flat = flat * size + (place + _counting(extent, window, rank) if dim in inner else place)
    flat, inside = np.broadcast_to(flat, updates.shape), np.broadcast_to(inside, updates.shape)
    targets = [operand.reshape(-1).copy() for operand in operands[:half]]
    combiner_of(machine, op, 0).scatter(targets, flat[inside], [update[inside] for update in operands[half + 1 :]])
    return [target.reshape(x.shape) for target in targets]


def _starts(x_shape: tuple[int, ...], sizes: Sequence[int], starts: list[Array]) -> list[Array]:
    return [np.clip(start.astype(np.int64), 0, whole - size) for start, whole, size in zip(starts, x_shape, sizes, strict=True)]


def _window(starts: list[Array], sizes: Sequence[int]) -> list[Array]:
    """The positions that a window covers along each dimension, per device."""
    rank = len(sizes)
    return [
        start.reshape(-1, *(1,) * rank) + _counting(size, dim, rank)
        for dim, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


@evaluates("stablehlo.dynamic_slice")
def dynamic_slice(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A slice at a clamped start."""
    x, sizes = operands[0], integers(op, "slice_sizes")
    starts = _starts(x.shape[1:], sizes, operands[1:])
    if all((start == start[:1]).all() for start in starts):
        return [x[(slice(None), *(slice(int(s[0]), int(s[0]) + size) for s, size in zip(starts, sizes, strict=True)))]]
    return [x[(_devices(x, len(sizes)), *_window(starts, sizes))]]


@evaluates("stablehlo.dynamic_update_slice")
def dynamic_update_slice(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The operand with a slice at a clamped start replaced."""
    x, update, *at = align(*operands) if any(operand.shape[0] > 1 for operand in operands) else operands
    sizes = update.shape[1:]
    starts = _starts(x.shape[1:], sizes, at)
    result = x.copy()
    result[(_devices(x, len(sizes)), *_window(starts, sizes))] = update
    return [result]


@evaluates("stablehlo.real_dynamic_slice")
def real_dynamic_slice(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A slice whose bounds are operands, equal on all devices."""
    x, *bounds = operands
    device_bounds = [same_numbers(op, bound, "bound") for bound in bounds]
    return [x[(slice(None), *(slice(*bound) for bound in zip(*device_bounds, strict=True)))]]
