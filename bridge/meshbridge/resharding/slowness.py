"""How much longer a resharding takes than on the machine's own links: a network between nodes is ten times slower, and an
all-to-all around a ring goes the whole way."""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, Protocol

from meshbridge.ir.sharding import Axes, Mesh, Sharding


class Slowness(NamedTuple):
    """How many times as long as on the machine's own links bytes take, and a collective to start."""

    bytes: float = 1.0
    launch: float = 1.0


class Rates(Protocol):
    """What collectives take along axes of the user's, by their names; equal ones are one object."""

    def __hash__(self) -> int:
        """By identity."""

    def gathering(self, axes: frozenset[str]) -> Slowness:
        """Of gathers and reductions."""

    def exchanging(self, axes: frozenset[str]) -> Slowness:
        """Of all-to-alls."""


@lru_cache(maxsize=1 << 16)
def slowness(mesh: Mesh, source: Sharding, target: Sharding, rates: Rates) -> Slowness:
    """That of resharding from `source` to `target`. A part of an axis is as slow as all of it, and what is sent in several
    collectives as the slower one."""
    exchanged, gathered = _moved(source, target)
    found = Slowness()
    if names := _names(mesh, exchanged):
        found = rates.exchanging(names)
    if names := _names(mesh, gathered):
        found = Slowness(*map(max, found, rates.gathering(names))) if exchanged else rates.gathering(names)
    return found


@lru_cache(maxsize=1 << 16)
def exchanges(source: Sharding, target: Sharding) -> bool:
    """Whether axes change dimensions between the two: whether it takes more than gathers and reductions."""
    return bool(_moved(source, target)[0])


def _moved(source: Sharding, target: Sharding) -> tuple[Axes, Axes]:
    """The axes that change dimensions, and those along which a value is gathered or reduced."""
    left: Axes = ()
    taken: Axes = ()
    for before, after in zip_longest(source.split_axes, target.split_axes, fillvalue=()):
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        left += before[same:]
        taken += after[same:]
    reduced = tuple(axis for axis in source.partial_axes if axis not in target.partial_axes)
    return tuple(axis for axis in left if axis in taken), tuple(axis for axis in left if axis not in taken) + reduced


def _names(mesh: Mesh, axes: Axes) -> frozenset[str]:
    """What the user calls the axes of more than one device."""
    real = {axis for axis in axes if mesh.shape[axis] > 1}
    return frozenset(name for name, run in mesh.runs.items() if not real.isdisjoint(run)) if real else frozenset()
