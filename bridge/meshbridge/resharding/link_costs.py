"""How much longer a resharding takes than on the machine's own links: a network between nodes is ten times slower, and an
all-to-all around a ring goes all the way round."""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, Protocol

from meshbridge.ir.sharding import Axes, Mesh, Sharding


class LinkCost(NamedTuple):
    """How many times longer bytes take than on the machine's own links, and a launch."""

    bytes: float = 1.0
    launch: float = 1.0


class Rates(Protocol):
    """What collectives take along axes, by the user's names; equal rates are one object."""

    def __hash__(self) -> int:
        """By identity."""

    def gathering(self, axes: frozenset[str]) -> LinkCost:
        """Of gathers and reductions."""

    def exchanging(self, axes: frozenset[str]) -> LinkCost:
        """Of all-to-alls."""


@lru_cache(maxsize=1 << 16)
def link_cost(mesh: Mesh, source: Sharding, target: Sharding, rates: Rates) -> LinkCost:
    """The cost of the links on which `source` is resharded to `target`. A sub-axis is as slow as its axis. If there are several
    collectives, the slowest counts."""
    exchanged, gathered = _moved(source, target)
    cost = LinkCost()
    if names := _names(mesh, exchanged):
        cost = rates.exchanging(names)
    if names := _names(mesh, gathered):
        cost = LinkCost(*map(max, cost, rates.gathering(names))) if exchanged else rates.gathering(names)
    return cost


@lru_cache(maxsize=1 << 16)
def exchanges(source: Sharding, target: Sharding) -> bool:
    """Whether axes change dimensions: whether it takes more than gathers and reductions."""
    return bool(_moved(source, target)[0])


def _moved(source: Sharding, target: Sharding) -> tuple[Axes, Axes]:
    """The axes that change dimensions, and the axes along which a value is gathered or reduced."""
    removed: Axes = ()
    added: Axes = ()
    for before, after in zip_longest(source.split_axes, target.split_axes, fillvalue=()):
        common = 0
        while common < min(len(before), len(after)) and before[common] == after[common]:
            common += 1
        removed += before[common:]
        added += after[common:]
    reduced = tuple(axis for axis in source.partial_axes if axis not in target.partial_axes)
    return tuple(axis for axis in removed if axis in added), tuple(axis for axis in removed if axis not in added) + reduced


def _names(mesh: Mesh, axes: Axes) -> frozenset[str]:
    """The user's names of the axes of more than one device."""
    real = {axis for axis in axes if mesh.shape[axis] > 1}
    return frozenset(name for name, run in mesh.runs.items() if not real.isdisjoint(run)) if real else frozenset()
