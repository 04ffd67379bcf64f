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

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, prod
from typing import Any, Literal, NamedTuple

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.relays import Relayed
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split, is_even
from meshbridge.resharding.candidates import padded_shape, reblocks, relabel, relabelling
from meshbridge.resharding.exchange import exchanged_axes, tiles_of_a_receiver
from meshbridge.resharding.paths import SplitDim
from meshbridge.resharding.plan import Options
from meshbridge.resharding.price import even_price, floor
from meshbridge.resharding.routes import reduced_axes, reductions, replications
from meshbridge.resharding.steps import Reblock, Shape, Step

MANY_TILES = 512
"""Tiles beyond which an exchange is not planned where padding does instead: every device of it has an offset for each."""

MOST_TILES = 8192
"""Tiles beyond which an exchange is not planned at all, but another sharding taken between."""


Grid = np.ndarray[Any, np.dtype[Any]]


Kind = Literal["padded", "relabelled", "tiles", "between"]


class PlanCandidate(NamedTuple):
    """One way from a sharding to another."""

    kind: Kind
    busiest: float
    "Elements that the busiest device receives: what it takes is time."
    received: float
    "Elements that a device receives, on average over all: what is paid for."
    launches: int
    "Collectives."
    between: Sharding | None = None
    relayed: tuple[Relayed, ...] = ()
    "What is sent in the place of permutes, which grows in steps with the tensor: it is not in the sums."

    def seconds(self, dtype: str, options: Options) -> float:
        """Modelled time."""
        return options.alpha * self.launches + options.beta * self.busiest * element_bytes(dtype)

    def times(self, others: int) -> PlanCandidate:
        """The same with dimensions beside it, that move alike, and with all that is sent in the sums."""
        if others == 1 and not self.relayed:
            return self
        busiest, received, launches = self.busiest * others, self.received * others, self.launches
        for sent, count in [each.times(others).sent for each in self.relayed]:
            busiest, received, launches = busiest + sent, received + sent, launches + count
        return PlanCandidate(self.kind, busiest, received, launches, self.between)


def _then(first: PlanCandidate, second: PlanCandidate, between: Sharding | None = None) -> PlanCandidate:
    """Two ways, one after the other, with a sharding `between` or as one of the padded tensor."""
    busiest, received = first.busiest + second.busiest, first.received + second.received
    kind: Kind = "padded" if between is None else "between"
    return PlanCandidate(kind, busiest, received, first.launches + second.launches, between, (*first.relayed, *second.relayed))


def way_between(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> PlanCandidate:
    """The way between two shardings without halos and offsets: of the even pair that they are, or the best of an uneven one."""
    if is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes):
        way = even_way(shape, dtype, mesh, source, target, options)
        if way is not None:
            return way
    return best_way(shape, dtype, mesh, source, target, options)


@lru_cache(maxsize=1 << 18)
def best_way(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> PlanCandidate:
    """The way of the least modelled time between two shardings without halos and offsets; of equals the first one."""
    ways, stops = _ways(shape, dtype, mesh, source, target, options)
    best = min(ways, key=lambda way: way.seconds(dtype, options), default=None)
    for between in stops:
        most = inf if best is None else best.seconds(dtype, options)
        if options.beta * element_bytes(dtype) * _least(shape, mesh, source, between, target) >= most:
            continue
        first = best_way(shape, dtype, mesh, source, between, options)
        if first.seconds(dtype, options) < most:
            found = _then(first, best_way(shape, dtype, mesh, between, target, options), between)
            best = found if found.seconds(dtype, options) < most else best
    assert best is not None, f"no way from {source} to {target}"
    return best


def _least(shape: Shape, mesh: Mesh, source: Sharding, between: Sharding, target: Sharding) -> float:
    """Elements that a device receives at least, if it stops at `between`."""
    return floor(shape, mesh, source, between).received + floor(shape, mesh, between, target).received


def even_way(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> PlanCandidate | None:
    """The way between two shardings that divide `shape` evenly, if they are aligned: mostly that without a stop. Where some digit
    has no dimension to scatter along, or a relabelling costs more than it must, the value may be reduced first along a dimension
    that the target divides."""
    reduced, copied = reduced_axes(source, target)[0], source.copied_axes(mesh)
    direct = _even_leg(mesh, zip(shape, source.split_axes, target.split_axes, strict=True), reduced, copied, options)
    if direct is None or not direct[1]:
        return direct and direct[0].times(1)
    best = direct[0].times(1)
    for between in reductions(shape, mesh, source, target, reduced):
        if between == target or _least(shape, mesh, source, between, target) > best.busiest:
            continue
        if first := _even_leg(mesh, zip(shape, source.split_axes, between.split_axes, strict=True), reduced, copied, options):
            found = _then(first[0].times(1), best_way(shape, dtype, mesh, between, target, options), between)
            best = min(best, found, key=lambda way: (way.busiest, way.launches if options.alpha else 0, way.received))
    return best


def _even_leg(
    mesh: Mesh, dims: Iterable[SplitDim], reduced: Axes, copied: Axes, options: Options
) -> tuple[PlanCandidate, bool] | None:
    """The way without a stop, and whether one may save something."""
    found = even_price(mesh, dims, reduced, copied, options.permutes(mesh))
    if found is None:
        return None
    return PlanCandidate("padded", found.busiest, found.average, found.launches, relayed=found.relayed), found.stop


def _ways(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options
) -> tuple[list[PlanCandidate], Iterable[Sharding]]:
    """All ways without a stop, the simplest first, and the shardings at which one may save something."""
    reduced, _ = reduced_axes(source, target)
    if reduced:
        whole = padded_shape(shape, mesh, source.split_axes, target.split_axes)
        resizes, others = _resized(shape, whole, mesh, source.split_axes, target.split_axes, options), 1
        found = [_padded(mesh, resizes, even_way(whole, dtype, mesh, source, target, options))]
    else:
        others, moved = 1, list[SplitDim]()
        for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
            if before == after:
                others *= -(-size // mesh.group_sizes[after])
            else:
                moved.append((size, before, after))
        found, resizes = _direct(mesh, tuple(sorted(moved)), source.partial_axes, options)
    ways = [way.times(others) for way in found if way is not None]
    if found[0] is not None and not resizes:
        return ways, ()
    return ways, reductions(shape, mesh, source, target, reduced) if reduced else replications(source, target)


@lru_cache(maxsize=1 << 16)
def _direct(
    mesh: Mesh, dims: tuple[SplitDim, ...], partial: Axes, options: Options
) -> tuple[list[PlanCandidate | None], tuple[Reblock, ...]]:
    """The ways without a sharding between, the padded one first, and how that changes the lengths of blocks; nothing is reduced.

    `dims` are those that change: with the others, which move alike, all prices grow alike.
    """
    shape, before, after = (tuple(each) for each in zip(*dims, strict=True)) if dims else ((), (), ())
    whole = padded_shape(shape, mesh, before, after)
    even = _even_leg(mesh, zip(whole, before, after, strict=True), (), (), options)
    resized = _resized(shape, whole, mesh, before, after, options)
    padded = _padded(mesh, resized, even and even[0])
    found = [padded]
    if padded is not None and not options.lists(mesh):
        return found, resized
    source, target = (Sharding(mesh.name, split, partial) for split in (before, after))
    each = tiles_of_a_receiver(mesh, source, target)
    count = each * mesh.group_size(exchanged_axes(source, target))
    permutes = each * prod(_fewer_blocks(mesh, dims[dim]) for dim in {step.dim for step in resized})
    if padded is None and (digits := relabelling(mesh, source, target)):
        step = relabel(shape, mesh, source, digits, options.lists(mesh))
        found.append(_along("relabelled", mesh, [(step, prod(step.shape))]))
    if options.lists(mesh) and (
        count <= MOST_TILES if padded is None else count <= MANY_TILES and permutes <= options.permutes(mesh)
    ):
        busiest, received = _received_as_tiles(mesh, dims)
        found.append(PlanCandidate("tiles", busiest, received, permutes if received else 0))
    return found, resized


def _padded(mesh: Mesh, resized: tuple[Reblock, ...], even: PlanCandidate | None) -> PlanCandidate | None:
    """The way by an even pair, of which the way is `even`, if that is aligned, and by the steps that change lengths of blocks."""
    if even is None:
        return None
    if not resized:
        return even._replace(kind="padded", between=None)
    steps = [(step, prod(step.shape) // step.shape[step.dim] * step.before) for step in resized]
    return _then(even, _along("padded", mesh, steps))


def _along(kind: Kind, mesh: Mesh, steps: Sequence[tuple[Step, int]]) -> PlanCandidate:
    """The way of these steps, each with the elements of the buffer before it."""
    way = PlanCandidate(kind, 0, 0, 0)
    for step, before in steps:
        if relayed := step.relayed(before):
            way = way._replace(relayed=(*way.relayed, relayed))
        else:
            busiest, received = way.busiest + step.received(before), way.received + step.total(before, mesh.size) / mesh.size
            way = way._replace(busiest=busiest, received=received, launches=way.launches + step.collectives)
    return way


def _resized(shape: Shape, whole: Shape, mesh: Mesh, source: Split, target: Split, options: Options) -> tuple[Reblock, ...]:
    """How the even pair of the tensor padded to `whole` changes the lengths of blocks, before and behind."""
    before, after = reblocks(shape, whole, mesh, source, target, options.lists(mesh))
    return (*before, *after)


def _fewer_blocks(mesh: Mesh, dim: SplitDim) -> int:
    """The blocks of the side that has fewer: as many sizes a tile may have."""
    return min(mesh.group_size(axes) for axes in dim[1:])


def _received_as_tiles(mesh: Mesh, dims: tuple[SplitDim, ...]) -> tuple[float, float]:
    """Elements that the busiest device receives in an exchange of tiles, and a device on average.

    The busiest one wants a whole block, and owns as little of it as any.
    """
    if not dims:
        return 0.0, 0.0
    wanted, most = (prod(each) for each in zip(*[_blocks(mesh, dim) for dim in dims], strict=True))
    owned, least = (prod(each) for each in zip(*[_owned(mesh, each) for each in _connected(dims)], strict=True))
    received = wanted - owned
    return (most - least, received) if received > 1e-9 * wanted else (0.0, 0.0)  # what is left of equal products is no tile


def _blocks(mesh: Mesh, dim: SplitDim) -> tuple[float, int]:
    """The lengths of the blocks behind, on average and of the longest."""
    size, _, after = dim
    count = mesh.group_size(after)
    return size / count, -(-size // count)


def _connected(dims: tuple[SplitDim, ...]) -> list[tuple[SplitDim, ...]]:
    """The dimensions in groups that share no mesh axis."""
    groups: list[tuple[set[int], tuple[SplitDim, ...]]] = []
    for dim in dims:
        axes = {*dim[1], *dim[2]}
        members: tuple[SplitDim, ...] = (dim,)
        for group in [each for each in groups if each[0] & axes]:
            groups.remove(group)
            axes, members = axes | group[0], group[1] + members
        groups.append((axes, members))
    return [members for _, members in groups]


@lru_cache(maxsize=1 << 16)
def _owned(mesh: Mesh, dims: tuple[SplitDim, ...]) -> tuple[float, float]:
    """Elements that a device owns before and wants after, along `dims`, on average and at least."""
    axes = [axis for _, before, after in dims for axis in (*before, *after)]
    if len(set(axes)) == len(axes):  # each pair of blocks is on as many devices, and what they share adds up to the tensor
        return prod(size for size, _, _ in dims) / mesh.group_size(axes), prod(_least_owned(mesh, dim) for dim in dims)
    met: Grid = np.ones(())
    wanted: Grid = np.ones(())
    for dim in dims:
        shared, block = _overlaps(mesh, sorted(set(axes)), dim)
        met, wanted = met * shared, wanted * block
    longest: Grid = np.broadcast_to(wanted == wanted.max(), met.shape)
    return float(met.sum() / met.size), float(met[longest].min())


def _least_owned(mesh: Mesh, dim: SplitDim) -> int:
    """The least that a block before, or all of the dimension, shares with one behind that is as long as any, along axes of its
    own."""
    size, before, after = dim
    count = mesh.group_size(before)
    if not after:
        return max(0, size - (count - 1) * -(-size // count))
    return 0 if before else -(-size // mesh.group_size(after))


def _overlaps(mesh: Mesh, axes: list[int], dim: SplitDim) -> tuple[Grid, Grid]:
    """Elements that the blocks before and after share, and those of the blocks after, by the coordinates along `axes`; 1 long
    where they do not matter."""
    low: Grid = np.zeros(())
    length, *sides = dim
    high: Grid = np.full((), length)
    block: Grid = high
    for side in sides:
        count = mesh.group_size(side)
        starts = np.minimum(np.arange(count + 1) * -(-length // count), length)
        sizes, order = [mesh.shape[axis] for axis in side], np.argsort(side)
        wide = [mesh.shape[axis] if axis in side else 1 for axis in axes]
        first, last = (ends.reshape(sizes).transpose(order).reshape(wide) for ends in (starts[:-1], starts[1:]))
        low, high, block = np.maximum(low, first), np.minimum(high, last), last - first
    shared: Grid = (high - low).clip(0)
    return shared, block
