"""The lower bound: what each device must receive, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.boxes import DimLayout, layout
from meshbridge.resharding.routes import reduced_axes, split_to_partial
from meshbridge.resharding.steps import Shape


@dataclass(frozen=True)
class Bound:
    """Bytes that the busiest device, and all devices together, must receive."""

    busiest: float
    total: float


def bound(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> Bound:
    """The lower bound between two shardings: the elements of the target shard that the device does not own in the source.

    Halos of the source count only where both sides shard the dimension alike. Where the value becomes partial, every device
    counts as if it needed its shard, except along axes that split the source: there it already has a term.

    Reducing an element of n terms takes n-1 transfers, and then one more for each device that needs it; one less if one of those
    has a term. Then only the sum over devices has a bound, and the busiest device receives at least its share.
    """
    source, target = source.padded(len(shape)), target.padded(len(shape))
    source = split_to_partial(shape, mesh, source, target) or source
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
    volume = np.ones(mesh.shape, np.int64)
    for dim_sizes in sizes:
        volume = volume * dim_sizes
    return volume


def _sizes(mesh: Mesh, before: DimLayout, after: DimLayout) -> Grid:
    """For each device, how many of the elements that it keeps after it owns before, along one dimension."""
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
    grid_shape = [mesh.shape[axis] if axis in dim.axes else 1 for axis in range(mesh.rank)]
    ends = np.array(intervals, np.int64).T.reshape(2, *sizes).transpose(0, *(1 + order))
    start, stop = ends.reshape(2, *grid_shape)
    return start, stop


DimPair = tuple[DimLayout, DimLayout]


def _connected(pairs: list[DimPair]) -> list[list[DimPair]]:
    """The dimensions in groups that share no mesh axis."""
    groups: list[tuple[set[int], list[DimPair]]] = []
    for pair in pairs:
        axes, dims = {*pair[0].axes, *pair[1].axes}, [pair]
        for group in [group for group in groups if group[0] & axes]:
            groups.remove(group)
            axes, dims = axes | group[0], group[1] + dims
        groups.append((axes, dims))
    return [dims for _, dims in groups]


def _met_somewhere(mesh: Mesh, dims: list[DimPair]) -> int:
    """Elements along `dims`, which share mesh axes, that some device owns before and keeps after."""
    axes = {axis for pair in dims for dim in pair for axis in dim.axes}
    group = replace(mesh, shape=tuple(size if axis in axes else 1 for axis, size in enumerate(mesh.shape)), device_ids=())
    met, sizes = [], []
    for before, after in dims:
        cuts = np.unique([end for of in (before.owned, after.kept) for interval in of for end in interval])
        ranges = [_by_device(group, dim, of) for dim, of in ((before, before.owned), (after, after.kept))]
        low, high = np.maximum(ranges[0][0], ranges[1][0]), np.minimum(ranges[0][1], ranges[1][1])
        ends = [np.broadcast_to(end, group.shape).reshape(-1, 1) for end in (low, high)]
        met.append(((ends[0] <= cuts[:-1]) & (cuts[1:] <= ends[1])).astype(np.float32))
        sizes.append(np.diff(cuts))
    # A product of matrices counts the devices that hold a cell of the grid of all cuts: there may be many of either.
    cells_met, volume = np.ones((group.size, 1), np.float32), np.ones(1, np.int64)
    for cells, size in zip(met[:-1], sizes[:-1], strict=True):
        cells_met, volume = (cells_met[:, :, None] * cells[:, None]).reshape(group.size, -1), np.outer(volume, size).ravel()
    return int((np.outer(volume, sizes[-1]) * (cells_met.T @ met[-1] > 0)).sum())
