"""Which box of a tensor each device holds: even and uneven shards, halos, shard offsets (as the mesh dialect defines them)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, local_shape
from meshbridge.resharding.steps import Shape

Interval = tuple[int, int]


@dataclass(frozen=True)
class DimLayout:
    """How one tensor dimension is sharded on the mesh. Block b of the devices along `axes` owns the elements `owned[b]` and keeps
    `kept[b]`, halo included; element i is at index `i - origin[b]` of a local buffer of `local` elements."""

    axes: Axes
    owned: tuple[Interval, ...]
    kept: tuple[Interval, ...]
    origin: tuple[int, ...]
    local: int

    @property
    def is_uniform(self) -> bool:
        """Whether every shard fills its buffer."""
        return all(stop - start == self.local for start, stop in self.kept)


Layout = tuple[DimLayout, ...]


@lru_cache(maxsize=16384)
def layout(shape: Shape, mesh: Mesh, sharding: Sharding) -> Layout:
    """The layout of every dimension. Raises MeshError where halo sizes or offsets do not fit the sharding."""
    dims = []
    halos, offsets = _halos(sharding), _offsets(shape, mesh, sharding)
    for size, axes in zip(shape, sharding.split_axes, strict=True):
        blocked = _of_several(mesh, axes)
        if not axes:
            dims.append(DimLayout((), ((0, size),), ((0, size),), (0,), size))
        elif offsets is not None:
            dims.append(_with_offsets(blocked, next(offsets)))
        else:
            dims.append(_with_halo(size, blocked, mesh.group_size(axes), next(halos)))
    return tuple(dims)


def _of_several(mesh: Mesh, axes: Axes) -> Axes:
    """The `axes` that have more than one device."""
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def buffer_shape(shape: Shape, mesh: Mesh, sharding: Sharding) -> Shape:
    """The shape of the local buffer: the ceiling division plus halos, or the largest shard that the offsets give."""
    if sharding.halo_sizes or sharding.offsets:
        return tuple(dim.local for dim in layout(shape, mesh, sharding))
    return local_shape(shape, mesh, sharding.split_axes)


def same_boxes(shape: Shape, mesh: Mesh, a: Sharding, b: Sharding) -> bool:
    """Whether every device holds the same box under both shardings. Partial axes do not matter."""
    if a.halo_sizes or a.offsets or b.halo_sizes or b.offsets:
        return layout(shape, mesh, a) == layout(shape, mesh, b)
    pairs = zip(a.split_axes, b.split_axes, strict=True)  # does not list all blocks: a large mesh has many
    return all(before == after or _of_several(mesh, before) == _of_several(mesh, after) for before, after in pairs)


def _with_halo(size: int, axes: Axes, count: int, halo: tuple[int, int]) -> DimLayout:
    block, (low, high) = -(-size // count), halo
    starts = [min(size, b * block) for b in range(count + 1)]
    owned = tuple(itertools.pairwise(starts))
    kept = tuple((max(0, b * block - low), min(size, (b + 1) * block + high)) for b in range(count))
    # A block after the end of the tensor owns nothing, and keeps no halo.
    kept = tuple(keep if a < z else (a, a) for (a, z), keep in zip(owned, kept, strict=True))
    return DimLayout(axes, owned, kept, tuple(b * block - low for b in range(count)), block + low + high)


def _with_offsets(axes: Axes, bounds: tuple[int, ...]) -> DimLayout:
    owned = tuple(itertools.pairwise(bounds))
    return DimLayout(axes, owned, owned, bounds[:-1], max(stop - start for start, stop in owned))


def _halos(sharding: Sharding) -> Iterator[tuple[int, int]]:
    """Halo sizes (low, high) of the split dimensions in order."""
    sizes, dims = sharding.halo_sizes, [axes for axes in sharding.split_axes if axes]
    if DYNAMIC in sizes:
        raise MeshError("halo sizes that are only known at run time cannot be resharded")
    if not sizes:
        sizes = (0, 0) * len(dims)
    if len(sizes) != 2 * len(dims) or min(sizes, default=0) < 0:
        raise MeshError(f"expected two halo sizes of 0 or more for each of {len(dims)} split dimensions, found {list(sizes)}")
    return iter([(sizes[2 * i], sizes[2 * i + 1]) for i in range(len(dims))])


def _offsets(shape: Shape, mesh: Mesh, sharding: Sharding) -> Iterator[tuple[int, ...]] | None:
    """The offsets of every split dimension in order, each with the end of its last shard."""
    if not sharding.offsets:
        return None
    if DYNAMIC in sharding.offsets:
        raise MeshError("shard offsets that are only known at run time cannot be resharded")
    if sharding.halo_sizes:
        raise MeshError("a sharding has either halo sizes or shard offsets, not both")
    bounds_by_dim, remaining = [], sharding.offsets
    for size, axes in zip(shape, sharding.split_axes, strict=True):
        if axes:
            count = mesh.group_size(axes) + 1
            bounds, remaining = remaining[:count], remaining[count:]
            if len(bounds) < count or bounds[0] != 0 or bounds[-1] != size or list(bounds) != sorted(bounds):
                raise MeshError(f"expected {count} ascending shard offsets from 0 to {size}, found {list(bounds)}")
            bounds_by_dim.append(bounds)
    if remaining:
        raise MeshError(f"{len(remaining)} shard offsets more than the split dimensions have")
    return iter(bounds_by_dim)
