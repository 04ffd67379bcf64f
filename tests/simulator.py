"""What the mesh dialect's collectives mean, in numpy, written from the text and the pictures of the dialect's document.

A distributed value is a dict from a device's multi-index in the mesh to the array that it holds. A device whose result the
document leaves undefined has no entry in a result. Nothing here knows how meshbridge or XLA do any of this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce as fold

import numpy as np

Index = tuple[int, ...]
Values = dict[Index, np.ndarray]
Axes = Sequence[int]
Shape = Sequence[int]


def devices(shape: Shape) -> list[Index]:
    """All multi-indices of a mesh, last axis fastest."""
    return list(itertools.product(*(range(size) for size in shape)))


def resolve(shape: Shape, axes: Axes) -> list[int]:
    """The axes of `mesh_shape` and the process indices: an empty list means all of them."""
    return list(axes) or list(range(len(shape)))


def groups(shape: Shape, axes: Axes) -> list[list[Index]]:
    """Device groups: same coordinates outside `axes`; in a group the axes count from outer to inner."""
    axes = list(axes)
    outside = [axis for axis in range(len(shape)) if axis not in axes]
    found: list[list[Index]] = []
    for fixed in itertools.product(*(range(shape[axis]) for axis in outside)):
        group = []
        for moving in itertools.product(*(range(shape[axis]) for axis in axes)):
            place = dict(zip(outside, fixed, strict=True)) | dict(zip(axes, moving, strict=True))
            group.append(tuple(place[axis] for axis in range(len(shape))))
        found.append(group)
    return found


def root_of(group: list[Index], axes: Axes, root: Index) -> Index:
    """The device of `group` whose coordinates along `axes` are `root`."""
    return next(device for device in group if tuple(device[axis] for axis in axes) == tuple(root))


def all_gather(shape: Shape, values: Values, axes: Axes, gather_axis: int) -> Values:
    """Every device gets its group's arrays one after the other."""
    return {
        device: np.concatenate([values[each] for each in group], gather_axis) for group in groups(shape, axes) for device in group
    }


def all_slice(shape: Shape, values: Values, axes: Axes, slice_axis: int) -> Values:
    """Every device keeps the piece of its own array that its number in the group says."""
    return {
        device: np.split(values[device], len(group), slice_axis)[number]
        for group in groups(shape, axes)
        for number, device in enumerate(group)
    }


def all_to_all(shape: Shape, values: Values, axes: Axes, split_axis: int, concat_axis: int) -> Values:
    """Device number j gets the j-th pieces of all of its group's arrays."""
    return {
        device: np.concatenate([np.split(values[each], len(group), split_axis)[number] for each in group], concat_axis)
        for group in groups(shape, axes)
        for number, device in enumerate(group)
    }


def broadcast(shape: Shape, values: Values, axes: Axes, root: Index) -> Values:
    """Every device gets the array of its group's root."""
    return {device: values[root_of(group, axes, root)] for group in groups(shape, axes) for device in group}


def gather(shape: Shape, values: Values, axes: Axes, gather_axis: int, root: Index) -> Values:
    """The root gets its group's arrays one after the other; undefined elsewhere."""
    return only_roots(shape, all_gather(shape, values, axes, gather_axis), axes, root)


def only_roots(shape: Shape, values: Values, axes: Axes, root: Index) -> Values:
    return {device: values[device] for group in groups(shape, axes) for device in [root_of(group, axes, root)]}


def truncated_quotient(total: np.ndarray, count: int) -> np.ndarray:
    """Division by the number of devices; of integers, towards zero."""
    if np.issubdtype(total.dtype, np.integer):
        return (np.sign(total) * (np.abs(total.astype(np.int64)) // count)).astype(total.dtype)
    return (total / np.asarray(count, total.dtype)).astype(total.dtype)


COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": np.add,
    "average": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def combined(arrays: list[np.ndarray], kind: str, dtype: np.dtype) -> np.ndarray:
    """The elements are converted to the result's element type and then reduced."""
    total = fold(lambda left, right: COMBINE[kind](left, right).astype(dtype), [array.astype(dtype) for array in arrays])
    return truncated_quotient(total, len(arrays)) if kind == "average" else total


def all_reduce(shape: Shape, values: Values, axes: Axes, kind: str, dtype: np.dtype) -> Values:
    """Every device gets its group's arrays reduced elementwise."""
    result: Values = {}
    for group in groups(shape, axes):
        total = combined([values[each] for each in group], kind, dtype)
        result |= dict.fromkeys(group, total)
    return result


def reduce(shape: Shape, values: Values, axes: Axes, kind: str, dtype: np.dtype, root: Index) -> Values:
    """The root gets its group's arrays reduced elementwise; undefined elsewhere."""
    return only_roots(shape, all_reduce(shape, values, axes, kind, dtype), axes, root)


def reduce_scatter(shape: Shape, values: Values, axes: Axes, kind: str, dtype: np.dtype, scatter_axis: int) -> Values:
    """all_reduce, of which every device keeps its piece."""
    return all_slice(shape, all_reduce(shape, values, axes, kind, dtype), axes, scatter_axis)


def scatter(shape: Shape, values: Values, axes: Axes, scatter_axis: int, root: Index) -> Values:
    """Every device gets its piece of the array of its group's root."""
    return all_slice(shape, broadcast(shape, values, axes, root), axes, scatter_axis)


def send_recv(shape: Shape, sent: Values, kept: Values, axes: Axes, source: Index, destination: Index) -> Values:
    """A matched pair: the destination gets the source's array; the other devices keep what they gave to the recv."""
    result = dict(kept)
    for group in groups(shape, axes):
        result[root_of(group, axes, destination)] = sent[root_of(group, axes, source)]
    return result


def shift(shape: Shape, values: Values, shift_axis: int, offset: int, rotate: bool) -> Values:
    """Every array moves by `offset` along `shift_axis`; undefined where none arrives."""
    result: Values = {}
    for device, value in values.items():
        target = device[shift_axis] + offset
        if rotate:
            target %= shape[shift_axis]
        if 0 <= target < shape[shift_axis]:
            result[(*device[:shift_axis], target, *device[shift_axis + 1 :])] = value
    return result


def permute(shape: Shape, values: Values, axes: Axes, target_axes: Axes) -> Values:
    """meshbridge's addition: number L of the group along `target_axes` gets the array of number L along `axes`."""
    moved: Values = {}
    for group in groups(shape, axes):
        fixed = {axis: group[0][axis] for axis in range(len(shape)) if axis not in axes}
        targets = [
            each
            for other in groups(shape, target_axes)
            for each in other
            if all(each[axis] == place for axis, place in fixed.items())
        ]
        moved |= {target: values[source] for source, target in zip(group, targets, strict=True)}
    return moved


def update_halo(shape: Shape, values: Values, split_axes: Sequence[Axes], halo_sizes: Sequence[int]) -> Values:
    """Every halo cell gets the value of its owner's core; cells outside of the whole tensor keep what they held."""
    split = [(dim, list(axes)) for dim, axes in enumerate(split_axes) if axes]
    halos = {dim: halo_sizes[2 * number : 2 * number + 2] for number, (dim, _) in enumerate(split)}
    local = next(iter(values.values())).shape
    core = {dim: local[dim] - sum(halos[dim]) for dim, _ in split}
    split_by = dict(split)
    result: Values = {}
    for device, value in values.items():
        updated = value.copy()
        for cell in itertools.product(*(range(size) for size in local)):
            owner, place, inside = list(device), list(cell), True
            for dim, axes in split:
                sizes = [shape[axis] for axis in axes]
                number = int(np.ravel_multi_index([device[axis] for axis in axes], sizes))
                position = number * core[dim] + cell[dim] - halos[dim][0]
                inside &= 0 <= position < core[dim] * int(np.prod(sizes))
                if inside:
                    owning, offset = divmod(position, core[dim])
                    place[dim] = offset + halos[dim][0]
                    for axis, coordinate in zip(split_by[dim], np.unravel_index(owning, sizes), strict=True):
                        owner[axis] = int(coordinate)
            if inside:
                updated[cell] = values[tuple(owner)][tuple(place)]
        result[device] = updated
    return result


def mesh_shape(shape: Shape, axes: Axes) -> list[int]:
    return [shape[axis] for axis in resolve(shape, axes)]


def process_multi_index(shape: Shape, axes: Axes) -> Values:
    """Per device, its coordinates along `axes`."""
    return {device: np.array([device[axis] for axis in resolve(shape, axes)], np.int32) for device in devices(shape)}


def process_linear_index(shape: Shape) -> Values:
    """Per device, its row-major number: in a 10x20x30 mesh, (1, 2, 3) is 3 + 30*2 + 20*30*1."""
    return {device: np.array(number, np.int32) for number, device in enumerate(devices(shape))}


def neighbors_linear_indices(shape: Shape, device: Index, split_axes: Axes) -> tuple[int, int]:
    """Row-major numbers of the previous and the next device along `split_axes`; -1 where there is none."""
    sizes = [shape[axis] for axis in split_axes]
    number = int(np.ravel_multi_index([device[axis] for axis in split_axes], sizes))

    def at(position: int) -> int:
        if not 0 <= position < int(np.prod(sizes)):
            return -1
        moved = list(device)
        for axis, coordinate in zip(split_axes, np.unravel_index(position, sizes), strict=True):
            moved[axis] = int(coordinate)
        return int(np.ravel_multi_index(moved, shape))

    return at(number - 1), at(number + 1)


def shard_shape(
    shape: Shape, tensor: Shape, split_axes: Sequence[Axes], halo_sizes: Sequence[int], offsets: Sequence[int], device: Index
) -> list[int]:
    """The shape of one device's shard, halos added. Without `offsets` it is the ceiling division, the last shards short."""
    result = []
    halos, starts = list(halo_sizes), list(offsets)
    for size, axes in itertools.zip_longest(tensor, split_axes[: len(tensor)], fillvalue=()):
        if not axes:
            result.append(int(size))
            continue
        sizes = [shape[axis] for axis in axes]
        count, number = int(np.prod(sizes)), int(np.ravel_multi_index([device[axis] for axis in axes], sizes))
        if starts:
            mine, starts = starts[: count + 1], starts[count + 1 :]
            extent = mine[number + 1] - mine[number]
        else:
            piece = -(-int(size) // count)
            extent = min(piece, max(0, int(size) - number * piece))
        if halos:
            extent, halos = extent + halos[0] + halos[1], halos[2:]
        result.append(extent)
    return result
