"""Meshes and shardings as frozen values, and their arithmetic: shard shapes, group sizes, device groups.

The dialect's spec: a mesh has axes 0, 1, …; a sharding says for each tensor dimension along which mesh axes it is split, outer
axis first, and along which axes the value is partial.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

DYNAMIC = -(2**63)
"""A size that is only known at run time, as MLIR stores it in static lists."""

REDUCTION_KINDS = ("sum", "max", "min", "product", "average", "bitwise_and", "bitwise_or", "bitwise_xor", "generic")
"""The dialect's spec's `#mesh.partial` kinds."""

MAX_DEVICES = 2**20
"""On which programs are partitioned, and whose tilings are read: plans are found in time on as many, and no machine has more."""

MOST_AXES = 2**15
"""Axes that a mesh may have: the dialect's numbers of axes have 16 bits, with a sign."""

Axes = tuple[int, ...]
"""Mesh axes from outer to inner."""

Split = tuple[Axes, ...]
"""Per tensor dimension, the mesh axes that split it."""


@dataclass(frozen=True)
class AxisRef:
    """An axis as the user knows it, or with `size` the sub-axis that starts after a product `pre` of the sizes outside of it."""

    name: str
    pre: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return f'"{self.name}"{self._part}'

    @property
    def label(self) -> str:
        """The same without quotes, for people: `x`, `x:(2)4`."""
        return f"{self.name}{self._part}"

    @property
    def _part(self) -> str:
        return "" if self.size is None else f":({self.pre}){self.size}"


class _GroupSizes(dict[Axes, int]):
    """Products of the sizes of a mesh's axes, each computed once."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__({(): 1})
        self._shape = shape

    def __missing__(self, axes: Axes) -> int:
        found = self[axes] = prod(map(self._shape.__getitem__, axes))
        return found


@dataclass(frozen=True)
class Mesh:
    """A device mesh. `shape` has the sizes of the axes that the dialect numbers.

    Each axis that the user knows is one of these, or a run of several, outer to inner: the digits of a coordinate along it. A
    shorter run is a sub-axis. So 2x2x2 with the names x, y and the digits 1, 2 is 2x4 to the user, and axis 2 is `"y":(2)2`.
    """

    name: str
    shape: tuple[int, ...]
    axis_names: tuple[str, ...] = ()
    "What the user calls the axes; empty where they go by their number."
    device_ids: tuple[int, ...] = ()
    "Devices in row-major order of the mesh where it differs from 0, 1, 2, …"
    digits: tuple[int, ...] = ()
    "How many entries of `shape` each of the user's axes is; empty where all are one."

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.shape, self.axis_names, self.device_ids))

    def __hash__(self) -> int:
        """Computed once: a mesh is part of most cache keys, and may list thousands of devices."""
        return self._hash

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return prod(self.shape)

    def group_size(self, axes: Iterable[int]) -> int:
        """Number of devices in one group along `axes`."""
        return self.group_sizes[axes if isinstance(axes, tuple) else tuple(axes)]

    @cached_property
    def group_sizes(self) -> _GroupSizes:
        """The same by axes, for what asks often."""
        return _GroupSizes(self.shape)

    @cached_property
    def runs(self) -> dict[str, Axes]:
        """The axes that make up each axis of the user's, by its name."""
        counts = self.digits or (1,) * self.rank
        ends = itertools.accumulate(counts)
        runs = (tuple(range(end - count, end)) for count, end in zip(counts, ends, strict=True))
        return dict(zip(self.axis_names or map(str, range(len(counts))), runs, strict=True))

    @property
    def named_axes(self) -> list[tuple[str, int]]:
        """Name and size of each axis of the user's."""
        return [(name, self.group_size(run)) for name, run in self.runs.items()]

    def axes_of(self, ref: AxisRef) -> Axes:
        """The axes that make up `ref`, outer to inner. Raises KeyError for an axis that the mesh does not have."""
        run = self.runs[ref.name]
        if ref.size is None:
            return run
        return tuple(axis for axis in run if ref.pre <= self.group_size(range(run[0], axis)) < ref.pre * ref.size)

    def refs_of(self, axes: Iterable[int]) -> list[AxisRef]:
        """What the user calls `axes`: neighbouring digits of one axis are one sub-axis, and all of them the axis."""
        found: list[list[int]] = []
        for axis in axes:
            if found and found[-1][-1] + 1 == axis and self._name_of[axis] == self._name_of[axis - 1]:
                found[-1].append(axis)
            else:
                found.append([axis])
        return [self._ref(tuple(part)) for part in found]

    def _ref(self, part: Axes) -> AxisRef:
        name = self._name_of[part[0]]
        run = self.runs[name]
        return AxisRef(name) if part == run else AxisRef(name, self.group_size(range(run[0], part[0])), self.group_size(part))

    @cached_property
    def _name_of(self) -> tuple[str, ...]:
        return tuple(name for name, run in self.runs.items() for _ in run)

    def labels(self, axes: Iterable[int]) -> tuple[str, ...]:
        """`refs_of` for people."""
        return tuple(ref.label for ref in self.refs_of(axes))

    def axis_name(self, axis: int) -> str:
        """What the user calls one axis."""
        return self._ref((axis,)).label

    def ordered_devices(self) -> tuple[int, ...]:
        """Device ids in row-major order of the mesh."""
        return self.device_ids or tuple(range(self.size))


@dataclass(frozen=True)
class Sharding:
    """How one tensor is sharded on a mesh. `split_axes` has one entry per dimension of the tensor (see `padded`).

    `halo_sizes` and `offsets` are flat, as in the dialect's spec; entries may be DYNAMIC.
    """

    mesh: str
    split_axes: Split
    partial_axes: Axes = ()
    partial_kind: str = "sum"
    halo_sizes: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()

    @cached_property
    def _hash(self) -> int:
        extra = (self.partial_axes, self.partial_kind, self.halo_sizes, self.offsets)
        return hash((self.mesh, self.split_axes, extra))

    def __hash__(self) -> int:
        """Computed once: prices are looked up by shardings."""
        return self._hash

    @property
    def is_replicated(self) -> bool:
        return not self.partial_axes and not any(self.split_axes)

    @property
    def used_axes(self) -> Axes:
        """All axes that split a dimension, in order of dimensions."""
        return tuple(itertools.chain.from_iterable(self.split_axes))

    def copied_axes(self, mesh: Mesh) -> Axes:
        """The axes along which devices hold copies."""
        taken = {*self.used_axes, *self.partial_axes}
        return tuple(axis for axis in range(mesh.rank) if axis not in taken and mesh.shape[axis] > 1)

    @property
    def summed_axes(self) -> Axes:
        """The axes along which the value is a partial sum."""
        return self.partial_axes if self.partial_kind == "sum" else ()

    def padded(self, rank: int) -> Sharding:
        """The same sharding with exactly `rank` entries in `split_axes`; the dialect lets trailing empty ones be left out."""
        if len(self.split_axes) == rank:
            return self
        return replace(self, split_axes=(self.split_axes + ((),) * rank)[:rank])

    def trimmed(self) -> Sharding:
        """The same sharding without the empty entries at the end of `split_axes`, which say nothing."""
        return replace(self, split_axes=without_end(self.split_axes))

    @property
    def is_plain(self) -> bool:
        """Whether shards are the blocks of the ceiling division: no halo sizes, no offsets."""
        return not (self.halo_sizes or self.offsets)

    def plain(self) -> Sharding:
        """The same sharding without halo sizes and offsets."""
        return self if self.is_plain else replace(self, halo_sizes=(), offsets=())

    def without_partial(self) -> Sharding:
        return replace(self, partial_axes=(), partial_kind="sum") if self.partial_axes else self

    def for_callers(self) -> Sharding:
        """What a caller holds: the terms of a sum, for which JAX and Shardy have a word, but the reduced value of other kinds."""
        return self if self.summed_axes else self.without_partial()


def without_end(split: Split) -> Split:
    """`split` without empty lists at its end, which the dialect leaves out."""
    return split[: max((dim + 1 for dim, axes in enumerate(split) if axes), default=0)]


def replicated(mesh: Mesh, rank: int) -> Sharding:
    """Replicated: every device holds the tensor."""
    return Sharding(mesh.name, ((),) * rank)


@lru_cache(maxsize=65536)
def local_shape(shape: tuple[int, ...], mesh: Mesh, split: Split) -> tuple[int, ...]:
    """The shard's shape: ceiling division, the last shards padded."""
    sizes = mesh.group_sizes
    return tuple([-(-size // sizes[axes]) for size, axes in zip(shape, split, strict=True)])


def is_even(shape: tuple[int, ...], mesh: Mesh, split: Split) -> bool:
    """Whether every dimension divides by the devices that split it."""
    sizes = mesh.group_sizes
    return not [size for size, axes in zip(shape, split, strict=True) if axes and size % sizes[axes]]


def even_split(shape: tuple[int, ...], mesh: Mesh, split: Split) -> Split:
    """`split` up to the first axis that leaves a dimension uneven: what arguments and results of a program may have."""
    return tuple(
        next(axes[:count] for count in range(len(axes), -1, -1) if size % mesh.group_size(axes[:count]) == 0)
        for size, axes in zip(shape, split, strict=True)
    )
