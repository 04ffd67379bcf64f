"""How to reshard where shards are uneven or have no common number system: ways, and their prices by formula.

    padded      both sides divide the tensor evenly once it is padded, and are aligned: the plan of that even pair
    relabelled  as many blocks on both sides in every dimension, over other axes: one permute
    tiles       what one device holds of another's target is sent once, directly: the fewest bytes, in many permutes
    between     another sharding first: a way to it, and a way from it

The price of a padded pair is that of the even one. An exchange of tiles receives what the targets want less what their devices
own. Both are sums over devices of products over dimensions, and factor over dimensions that share no mesh axis.

A way is chosen by its price, and only then a plan is made of it: so a plan sends what it was priced at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Axes, Mesh, Sharding, is_even, local_shape
from meshbridge.resharding.alignment import align
from meshbridge.resharding.candidates import padded_shape, reblocks, relabelling
from meshbridge.resharding.exchange import exchanged_axes, tiles_of_a_receiver
from meshbridge.resharding.plan import Options
from meshbridge.resharding.price import even_price
from meshbridge.resharding.routes import reduced_axes, reductions, replications
from meshbridge.resharding.steps import Reblock, Shape, still

MANY_TILES = 512
"""Tiles beyond which an exchange is not planned where padding does instead: every device of it has an offset for each."""

MOST_TILES = 8192
"""Tiles beyond which an exchange is not planned at all, but another sharding taken between."""


Grid = np.ndarray[Any, np.dtype[Any]]


class Way(NamedTuple):
    """One way from a sharding to another."""

    kind: Literal["padded", "relabelled", "tiles", "between"]
    received: float
    "Elements that a device receives, on average over all."
    launches: int
    "Collectives, about: a padded pair counts as one, whatever its plan takes."
    between: Sharding | None = None

    def seconds(self, dtype: str, options: Options) -> float:
        """Modelled time."""
        return options.alpha * self.launches + options.beta * self.received * element_bytes(dtype)


class _Dim(NamedTuple):
    """One tensor dimension and the axes that split it before and after."""

    size: int
    before: Axes
    after: Axes


def is_aligned(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> bool:
    """Whether both divide `shape` evenly, in one number system: what `aligned` plans and `price` prices."""
    splits = (source.split_axes, target.split_axes)
    return all(is_even(shape, mesh, split) for split in splits) and align(shape, mesh, *splits) is not None


@lru_cache(maxsize=1 << 18)
def best_way(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> Way:
    """The way of the least modelled time between two shardings without halos and offsets; of equals the first one."""
    return min(_ways(shape, dtype, mesh, source, target, options), key=lambda way: way.seconds(dtype, options))


def _ways(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> Iterator[Way]:
    """All ways, the simplest first."""
    reduced, _ = reduced_axes(source, target)
    if reduced:
        found = [_padded(shape, mesh, source, target, options.permutes(mesh))]
        resizes, others = _resized(shape, mesh, source, target), 1
    else:
        dims = [_Dim(*each) for each in zip(shape, source.split_axes, target.split_axes, strict=True)]
        moved = tuple(sorted(dim for dim in dims if dim.before != dim.after))
        others = prod(-(-dim.size // mesh.group_size(dim.after)) for dim in dims if dim.before == dim.after)
        found, resizes = _direct(mesh, moved, source.partial_axes, options.permutes(mesh))
    for way in found:
        if way is not None:
            yield way._replace(received=way.received * others)
    if found[0] is None or resizes:
        for between in reductions(shape, mesh, source, target, reduced) if reduced else replications(source, target):
            legs = [best_way(shape, dtype, mesh, *leg, options) for leg in ((source, between), (between, target))]
            yield Way("between", sum(leg.received for leg in legs), sum(leg.launches for leg in legs), between)


@lru_cache(maxsize=1 << 16)
def _direct(mesh: Mesh, dims: tuple[_Dim, ...], partial: Axes, rounds: int) -> tuple[list[Way | None], tuple[Reblock, ...]]:
    """The ways without a sharding between, the padded one first, and how that changes the lengths of blocks; nothing is reduced.

    `dims` are those that change: with the others, which move alike, all prices grow alike.
    """
    shape = tuple([dim.size for dim in dims])
    source = Sharding(mesh.name, tuple([dim.before for dim in dims]), partial)
    target = Sharding(mesh.name, tuple([dim.after for dim in dims]), partial)
    padded, resized = _padded(shape, mesh, source, target, rounds), _resized(shape, mesh, source, target)
    found = [padded]
    each = tiles_of_a_receiver(mesh, source, target)
    count = each * mesh.group_size(exchanged_axes(source, target))
    permutes = each * prod(_fewer_blocks(mesh, dims[dim]) for dim in {step.dim for step in resized})
    if padded is None and (digits := relabelling(mesh, source, target)):
        found.append(Way("relabelled", prod(local_shape(shape, mesh, source.split_axes)) * (1 - still(*digits, 1)), 1))
    if count <= MOST_TILES if padded is None else count <= MANY_TILES and permutes <= rounds:
        received = _received_as_tiles(mesh, dims)
        found.append(Way("tiles", received, permutes if received else 0))
    return found, resized


def _padded(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, rounds: int) -> Way | None:
    """The way by an even pair, if that is aligned."""
    received = even_price(padded_shape(shape, mesh, source, target), mesh, source, target, rounds)
    if received is None:
        return None
    launches = 1 if received else 0
    for step in _resized(shape, mesh, source, target):
        before = prod(step.shape) // step.shape[step.dim] * step.before
        received += step.total(before, mesh.size) / mesh.size
        launches += step.collectives
    return Way("padded", received, launches)


def _resized(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> tuple[Reblock, ...]:
    """How the even pair changes the lengths of blocks, before and behind."""
    whole = padded_shape(shape, mesh, source, target)
    return (*reblocks(shape, whole, mesh, source.split_axes), *reblocks(shape, whole, mesh, target.split_axes, back=True))


def _fewer_blocks(mesh: Mesh, dim: _Dim) -> int:
    """The blocks of the side that has fewer: as many sizes a tile may have."""
    return min(mesh.group_size(dim.before), mesh.group_size(dim.after))


def _received_as_tiles(mesh: Mesh, dims: tuple[_Dim, ...]) -> float:
    """Elements that a device receives on average in an exchange of tiles."""
    wanted = prod(dim.size / mesh.group_size(dim.after) for dim in dims)
    received = wanted - prod(_owned(mesh, each) for each in _connected(dims))
    return received if received > 1e-9 * wanted else 0.0  # what is left of equal products is no tile


def _connected(dims: tuple[_Dim, ...]) -> list[tuple[_Dim, ...]]:
    """The dimensions in groups that share no mesh axis."""
    groups: list[tuple[set[int], tuple[_Dim, ...]]] = []
    for dim in dims:
        axes = {*dim.before, *dim.after}
        members: tuple[_Dim, ...] = (dim,)
        for group in [each for each in groups if each[0] & axes]:
            groups.remove(group)
            axes, members = axes | group[0], group[1] + members
        groups.append((axes, members))
    return [members for _, members in groups]


@lru_cache(maxsize=1 << 16)
def _owned(mesh: Mesh, dims: tuple[_Dim, ...]) -> float:
    """Elements that a device owns before and wants after, along `dims`, on average."""
    axes = [axis for dim in dims for axis in (*dim.before, *dim.after)]
    if len(set(axes)) == len(axes):  # each pair of blocks is on as many devices, and what they share adds up to the tensor
        return prod(dim.size for dim in dims) / mesh.group_size(axes)
    met: Grid = np.ones(())
    for dim in dims:
        met = met * _overlaps(mesh, sorted(set(axes)), dim)
    return float(met.sum() / met.size)


def _overlaps(mesh: Mesh, axes: list[int], dim: _Dim) -> Grid:
    """Elements that the blocks before and after share, by the coordinates along `axes`; 1 long where they do not matter."""
    low: Grid = np.zeros(())
    high: Grid = np.full((), dim.size)
    for side in (dim.before, dim.after):
        count = mesh.group_size(side)
        starts = np.minimum(np.arange(count + 1) * -(-dim.size // count), dim.size)
        sizes, order = [mesh.shape[axis] for axis in side], np.argsort(side)
        wide = [mesh.shape[axis] if axis in side else 1 for axis in axes]
        first, last = (ends.reshape(sizes).transpose(order).reshape(wide) for ends in (starts[:-1], starts[1:]))
        low, high = np.maximum(low, first), np.minimum(high, last)
    shared: Grid = (high - low).clip(0)
    return shared
