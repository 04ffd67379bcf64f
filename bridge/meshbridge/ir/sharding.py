"""Meshes and shardings as frozen values, and their arithmetic: shard shapes and group sizes.

As in the dialect's spec, a mesh has axes 0, 1, …; a sharding has for each tensor dimension the mesh axes that split it, outer
axis first, and the axes along which the value is partial.
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
"""The most devices of a partitioned program, or of a tiling: plans are found in time for as many, and no machine has more."""

MOST_AXES = 2**15
"""The most axes of a mesh: the dialect's axis numbers have 16 bits, with a sign."""

Axes = tuple[int, ...]
"""Mesh axes from outer to inner."""

Split = tuple[Axes, ...]
"""Per tensor dimension, the mesh axes that split it."""


@dataclass(frozen=True)
class AxisRef:
    """One of the user's axes, or with `size` the sub-axis that starts after a product `pre` of the sizes outside of it."""

    name: str
    pre: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return f'"{self.name}"{self._part}'

    @property
    def label(self) -> str:
        """The text without quotes: `x`, `x:(2)4`."""
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
        size = self[axes] = prod(map(self._shape.__getitem__, axes))
        return size


@dataclass(frozen=True)
class Mesh:
    """A device mesh. `shape` has the sizes of the axes as the dialect numbers them.

    Each of the user's axes is one of these, or a run of several, outer to inner: the digits of a coordinate along it. A shorter
    run is a sub-axis. So 2x2x2 with the names x, y and the digits 1, 2 is 2x4 to the user, and axis 2 is `"y":(2)2`.
    """

    name: str
    shape: tuple[int, ...]
    axis_names: tuple[str, ...] = ()
    "The user's names of the axes; empty if they are numbered."
    device_ids: tuple[int, ...] = ()
    "Devices in row-major order of the mesh, if it differs from 0, 1, 2, …"
    digits: tuple[int, ...] = ()
    "The number of entries of `shape` of each of the user's axes; empty if all have one."

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
        """Group sizes by axes, for frequent lookups."""
        return _GroupSizes(self.shape)

    @cached_property
    def runs(self) -> dict[str, Axes]:
        """The axes of each of the user's axes, by name."""
        counts = self.digits or (1,) * self.rank
        ends = itertools.accumulate(counts)
        runs = (tuple(range(end - count, end)) for count, end in zip(counts, ends, strict=True))
        return dict(zip(self.axis_names or map(str, range(len(counts))), runs, strict=True))

    @property
    def named_axes(self) -> list[tuple[str, int]]:
        """Name and size of each of the user's axes."""
        return [(name, self.group_size(run)) for name, run in self.runs.items()]

    def axes_of(self, ref: AxisRef) -> Axes:
        """The axes of `ref`, outer to inner. Raises KeyError for an axis that the mesh does not have."""
        run = self.runs[ref.name]
        if ref.size is None:
            return run
        return tuple(axis for axis in run if ref.pre <= self.group_size(range(run[0], axis)) < ref.pre * ref.size)

    def refs_of(self, axes: Iterable[int]) -> list[AxisRef]:
        """The user's names of `axes`: adjacent digits of one axis are one sub-axis, and all of them the axis."""
        runs: list[list[int]] = []
        for axis in axes:
            if runs and runs[-1][-1] + 1 == axis and self._name_of[axis] == self._name_of[axis - 1]:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        return [self._ref(tuple(run)) for run in runs]

    def _ref(self, part: Axes) -> AxisRef:
        name = self._name_of[part[0]]
        run = self.runs[name]
        return AxisRef(name) if part == run else AxisRef(name, self.group_size(range(run[0], part[0])), self.group_size(part))

    @cached_property
    def _name_of(self) -> tuple[str, ...]:
        return tuple(name for name, run in self.runs.items() for _ in run)

    def labels(self, axes: Iterable[int]) -> tuple[str, ...]:
        """`refs_of` as texts."""
        return tuple(ref.label for ref in self.refs_of(axes))

    def axis_name(self, axis: int) -> str:
        """The user's name of one axis."""
        return self._ref((axis,)).label

    def ordered_devices(self) -> tuple[int, ...]:
        """Device ids in row-major order of the mesh."""
        return self.device_ids or tuple(range(self.size))


@dataclass(frozen=True)
class Sharding:
    """The sharding of one tensor on a mesh. `split_axes` has one entry per dimension of the tensor (see `padded`).

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
        used = {*self.used_axes, *self.partial_axes}
        return tuple(axis for axis in range(mesh.rank) if axis not in used and mesh.shape[axis] > 1)

    @property
    def summed_axes(self) -> Axes:
        """The axes along which the value is a partial sum."""
        return self.partial_axes if self.partial_kind == "sum" else ()

    def padded(self, rank: int) -> Sharding:
        """The sharding with exactly `rank` entries in `split_axes`; the dialect omits empty ones at the end."""
        if len(self.split_axes) == rank:
            return self
        return replace(self, split_axes=(self.split_axes + ((),) * rank)[:rank])

    def trimmed(self) -> Sharding:
        """The sharding without the empty entries at the end of `split_axes`, which are optional."""
        return replace(self, split_axes=without_trailing_empty(self.split_axes))

    @property
    def is_plain(self) -> bool:
        """Whether shards are blocks of the ceiling division, without halo sizes and offsets."""
        return not (self.halo_sizes or self.offsets)

    def plain(self) -> Sharding:
        """The sharding without halo sizes and offsets."""
        return self if self.is_plain else replace(self, halo_sizes=(), offsets=())

    def without_partial(self) -> Sharding:
        return replace(self, partial_axes=(), partial_kind="sum") if self.partial_axes else self

    def for_callers(self) -> Sharding:
        """A caller's sharding: partial sums, for which JAX and Shardy have a word, but reduced values of other kinds."""
        return self if self.summed_axes else self.without_partial()


def without_trailing_empty(split: Split) -> Split:
    """`split` without empty lists at its end, which the dialect omits."""
    return split[: max((dim + 1 for dim, axes in enumerate(split) if axes), default=0)]


def replicated(mesh: Mesh, rank: int) -> Sharding:
    """The replicated sharding: every device has the whole tensor."""
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
    """`split` up to the first axis that leaves a dimension uneven; arguments and results of a program must be even."""
    return tuple(
        next(axes[:count] for count in range(len(axes), -1, -1) if size % mesh.group_size(axes[:count]) == 0)
        for size, axes in zip(shape, split, strict=True)
    )
