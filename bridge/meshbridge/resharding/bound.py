"""The lower bound: what each device must receive, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from meshbridge.resharding.boxes import DimLayout, layout
from meshbridge.resharding.elements import element_bytes
from meshbridge.resharding.routes import reduced_axes
from meshbridge.resharding.steps import Shape
from meshbridge.sharding import Mesh, Sharding


@dataclass(frozen=True)
class Bound:
    """Bytes that the busiest device, and all devices together, must receive."""

    busiest: float
    total: float


def bound(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> Bound:
    """The lower bound between two shardings: the elements of the target shard that the device does not own in the source.

    Halos of the source count where a dimension lies alike on both sides, and are not trusted otherwise.

    Of a partial source with n terms, every element takes n-1 transfers before anybody holds it, and then one for each further
    holder. Only the sum over devices has a bound then, and the busiest device receives at least its share.
    """
    source, target = source.padded(len(shape)), target.padded(len(shape))
    before, after = layout(shape, mesh, source), layout(shape, mesh, target)
    size = element_bytes(dtype)
    wanted = _product([_sizes(mesh, dim, dim) for dim in after], mesh)
    reduced, _ = reduced_axes(source, target)
    if reduced:
        terms = mesh.group_size(reduced)
        copies = mesh.group_size(source.partial_axes) // terms  # axes over which the value stays partial: as many tensors
        total = size * ((terms - 2) * prod(shape) * copies + float(wanted.sum()))
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
