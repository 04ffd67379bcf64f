"""The lower bound: what each device must receive, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.boxes import DimLayout, layout
from meshbridge.resharding.routes import placed, reduced_axes
from meshbridge.resharding.steps import Shape


@dataclass(frozen=True)
class Bound:
    """Bytes that the busiest device, and all devices together, must receive."""

    busiest: float
    total: float


def bound(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> Bound:
    """The lower bound between two shardings: the elements of the target shard that the device does not own in the source.

    Halos of the source count where a dimension is sharded alike on both sides, not otherwise. Where the value becomes partial,
    every device counts as if it needed its shard, but along axes that split the source: there it has a term already.

    Of a partial source with n terms, every element takes n-1 transfers before anybody holds it, and then one for each holder; one
    less, if any of those has a term of it to begin with. Only the sum over devices has a bound then, and the busiest device
    receives at least its share.
    """
    source, target = source.padded(len(shape)), target.padded(len(shape))
    source = placed(shape, mesh, source, target) or source
    before, after = layout(shape, mesh, source), layout(shape, mesh, target)
    size = element_bytes(dtype)
    wanted = _product([_sizes(mesh, dim, dim) for dim in after], mesh)
    reduced, _ = reduced_axes(source, target)
    if reduced:
        terms = mesh.group_size(reduced)
        copies = mesh.group_size(source.partial_axes) // terms  # axes over which the value stays partial: as many tensors
        met = prod(_met_somewhere(mesh, dims) for dims in _connected(list(zip(before, after, strict=True))))
        total = size * (((terms - 1) * prod(shape) - met) * copies + float(wanted.sum()))
        return Bound(total / mesh.size, total)
    missing = wanted - _product([_sizes(mesh, a, b) for a, b in zip(before, after, strict=True)], mesh)
    return Bound(size * float(missing.max()), size * float(missing.sum()))


Grid = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def _product(sizes: list[Grid], mesh: Mesh) -> Grid:
    found = np.ones(mesh.shape, np.int64)
    for each in sizes:
        found = found * each
    return found


def _sizes(mesh: Mesh, before: DimLayout, after: DimLayout) -> Grid:
    """Per device of the mesh, how much of what it keeps after it owns before, along one dimension; all of it if both are one."""
    kept = _by_device(mesh, after, after.kept)
    if before == after:
        return kept[1] - kept[0]
    owned = _by_device(mesh, before, before.owned)
    overlap: Grid = np.minimum(kept[1], owned[1]) - np.maximum(kept[0], owned[0])
    return overlap.clip(0)


def _by_device(mesh: Mesh, dim: DimLayout, intervals: tuple[tuple[int, int], ...]) -> tuple[Grid, Grid]:
    """Starts and stops of the intervals, on the grid of the mesh."""
    sizes = [mesh.shape[axis] for axis in dim.axes]
    order = np.argsort(dim.axes)
    wide = [mesh.shape[axis] if axis in dim.axes else 1 for axis in range(mesh.rank)]
    ends = np.array(intervals, np.int64).T.reshape(2, *sizes).transpose(0, *(1 + order))
    start, stop = ends.reshape(2, *wide)
    return start, stop


DimPair = tuple[DimLayout, DimLayout]


def _connected(pairs: list[DimPair]) -> list[list[DimPair]]:
    """The dimensions in groups that share no mesh axis."""
    groups: list[tuple[set[int], list[DimPair]]] = []
    for pair in pairs:
        axes, dims = {*pair[0].axes, *pair[1].axes}, [pair]
        for group in [each for each in groups if each[0] & axes]:
            groups.remove(group)
            axes, dims = axes | group[0], group[1] + dims
        groups.append((axes, dims))
    return [dims for _, dims in groups]


def _met_somewhere(mesh: Mesh, dims: list[DimPair]) -> int:
    """Elements along `dims`, which share mesh axes, that some device owns before and keeps after."""
    axes = {axis for pair in dims for each in pair for axis in each.axes}
    group = replace(mesh, shape=tuple(size if axis in axes else 1 for axis, size in enumerate(mesh.shape)), device_ids=())
    held, sizes = [], []
    for before, after in dims:
        cuts = np.unique([end for of in (before.owned, after.kept) for interval in of for end in interval])
        both = [_by_device(group, dim, of) for dim, of in ((before, before.owned), (after, after.kept))]
        low, high = np.maximum(both[0][0], both[1][0]), np.minimum(both[0][1], both[1][1])
        ends = [np.broadcast_to(end, group.shape).reshape(-1, 1) for end in (low, high)]
        held.append(((ends[0] <= cuts[:-1]) & (cuts[1:] <= ends[1])).astype(np.float32))
        sizes.append(np.diff(cuts))
    # A product of matrices counts the devices that hold a cell of the grid of all cuts: there may be many of either.
    first, volume = np.ones((group.size, 1), np.float32), np.ones(1, np.int64)
    for cells, size in zip(held[:-1], sizes[:-1], strict=True):
        first, volume = (first[:, :, None] * cells[:, None]).reshape(group.size, -1), np.outer(volume, size).ravel()
    return int((np.outer(volume, sizes[-1]) * (first.T @ held[-1] > 0)).sum())
