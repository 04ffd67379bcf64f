"""How to reshard where shards are uneven or have no common number system: candidates, and their prices by formula.

    padded      both sides divide the padded tensor evenly, and are aligned: the plan of that even pair
    relabelled  both sides have the same number of blocks in every dimension, over different axes: one permute
    tiles       what one device holds of another's target is sent once, directly: the fewest bytes, in many permutes
    between     a stop at another sharding: one candidate to it, and one from it

The price of a padded pair is that of the even one. An exchange of tiles receives the elements that the targets need, less those
that their devices own. Both are sums over devices of products over dimensions, and factor over dimensions that share no mesh
axis.

A candidate is chosen by its price, and only then planned: a plan sends what it was priced at.
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
from meshbridge.resharding.plan import PlanOptions
from meshbridge.resharding.price import even_price, floor
from meshbridge.resharding.routes import reduced_axes, reductions, replications
from meshbridge.resharding.steps import Reblock, Shape, Step

MANY_TILES = 512
"""An exchange of more tiles is not planned if padding is possible: every device has an offset for each tile."""

MOST_TILES = 8192
"""An exchange of more tiles is not planned at all; a stop at another sharding replaces it."""


Grid = np.ndarray[Any, np.dtype[Any]]


Kind = Literal["padded", "relabelled", "tiles", "between"]


class PlanCandidate(NamedTuple):
    """One candidate from a sharding to another."""

    kind: Kind
    busiest: float
    "Elements that the busiest device receives, which take time."
    received: float
    "Elements that a device receives, averaged over all devices, which are the price."
    launches: int
    "Collectives."
    between: Sharding | None = None
    relayed: tuple[Relayed, ...] = ()
    "All-to-alls in the place of permutes. They grow in steps with the tensor, so they are not in the sums."

    def seconds(self, dtype: str, options: PlanOptions) -> float:
        """Modelled time."""
        return options.alpha * self.launches + options.beta * self.busiest * element_bytes(dtype)

    def times(self, others: int) -> PlanCandidate:
        """The candidate with `others` times as many elements in dimensions that do not change, and with `relayed` in the sums."""
        if others == 1 and not self.relayed:
            return self
        busiest, received, launches = self.busiest * others, self.received * others, self.launches
        for relayed_elements, count in [relay.times(others).sent for relay in self.relayed]:
            busiest, received, launches = busiest + relayed_elements, received + relayed_elements, launches + count
        return PlanCandidate(self.kind, busiest, received, launches, self.between)


def _then(before: PlanCandidate, after: PlanCandidate, between: Sharding | None = None) -> PlanCandidate:
    """Two candidates, one after the other, with a stop at `between`, or as a plan of the padded tensor."""
    busiest, received = before.busiest + after.busiest, before.received + after.received
    kind: Kind = "padded" if between is None else "between"
    return PlanCandidate(kind, busiest, received, before.launches + after.launches, between, (*before.relayed, *after.relayed))


def candidate_between(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> PlanCandidate:
    """The candidate between two shardings without halos and offsets: of the even pair, or the best of an uneven one."""
    if is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes):
        candidate = even_candidate(shape, dtype, mesh, source, target, options)
        if candidate is not None:
            return candidate
    return best_candidate(shape, dtype, mesh, source, target, options)


@lru_cache(maxsize=1 << 18)
def best_candidate(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> PlanCandidate:
    """The candidate of the least modelled time between two shardings without halos and offsets; the first among equals."""
    candidates, stops = _candidates(shape, dtype, mesh, source, target, options)
    best = min(candidates, key=lambda candidate: candidate.seconds(dtype, options), default=None)
    for between in stops:
        limit = inf if best is None else best.seconds(dtype, options)
        if options.beta * element_bytes(dtype) * _least(shape, mesh, source, between, target) >= limit:
            continue
        to_stop = best_candidate(shape, dtype, mesh, source, between, options)
        if to_stop.seconds(dtype, options) < limit:
            with_stop = _then(to_stop, best_candidate(shape, dtype, mesh, between, target, options), between)
            best = with_stop if with_stop.seconds(dtype, options) < limit else best
    assert best is not None, f"no plan from {source} to {target}"
    return best


def _least(shape: Shape, mesh: Mesh, source: Sharding, between: Sharding, target: Sharding) -> float:
    """The least elements that a device receives with a stop at `between`."""
    return floor(shape, mesh, source, between).received + floor(shape, mesh, between, target).received


def even_candidate(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> PlanCandidate | None:
    """The candidate between two shardings that divide `shape` evenly, if they are aligned: mostly the one without a stop. If a
    digit has no dimension to scatter along, or a relabelling costs more than it must, the value may be reduced first along a
    dimension that the target splits."""
    reduced, copied = reduced_axes(source, target)[0], source.copied_axes(mesh)
    direct = _even_leg(mesh, zip(shape, source.split_axes, target.split_axes, strict=True), reduced, copied, options)
    if direct is None or not direct[1]:
        return direct and direct[0].times(1)
    best = direct[0].times(1)
    for between in reductions(shape, mesh, source, target, reduced):
        if between == target or _least(shape, mesh, source, between, target) > best.busiest:
            continue
        if to_stop := _even_leg(mesh, zip(shape, source.split_axes, between.split_axes, strict=True), reduced, copied, options):
            with_stop = _then(to_stop[0].times(1), best_candidate(shape, dtype, mesh, between, target, options), between)
            best = min(best, with_stop, key=lambda each: (each.busiest, each.launches if options.alpha else 0, each.received))
    return best


def _even_leg(
    mesh: Mesh, dims: Iterable[SplitDim], reduced: Axes, copied: Axes, options: PlanOptions
) -> tuple[PlanCandidate, bool] | None:
    """The candidate without a stop, and whether a stop may save something."""
    price = even_price(mesh, dims, reduced, copied, options.permutes(mesh))
    if price is None:
        return None
    return PlanCandidate("padded", price.busiest, price.average, price.launches, relayed=price.relayed), price.stop


def _candidates(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> tuple[list[PlanCandidate], Iterable[Sharding]]:
    """All candidates without a stop, the simplest first, and the shardings at which a stop may save something."""
    reduced, _ = reduced_axes(source, target)
    if reduced:
        padded_shape_ = padded_shape(shape, mesh, source.split_axes, target.split_axes)
        resizes, unchanged = _resized(shape, padded_shape_, mesh, source.split_axes, target.split_axes, options), 1
        candidates = [_padded(mesh, resizes, even_candidate(padded_shape_, dtype, mesh, source, target, options))]
    else:
        unchanged, changed_dims = 1, list[SplitDim]()
        for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
            if before == after:
                unchanged *= -(-size // mesh.group_sizes[after])
            else:
                changed_dims.append((size, before, after))
        candidates, resizes = _direct(mesh, tuple(sorted(changed_dims)), source.partial_axes, options)
    feasible = [candidate.times(unchanged) for candidate in candidates if candidate is not None]
    if candidates[0] is not None and not resizes:
        return feasible, ()
    return feasible, reductions(shape, mesh, source, target, reduced) if reduced else replications(source, target)


@lru_cache(maxsize=1 << 16)
def _direct(
    mesh: Mesh, dims: tuple[SplitDim, ...], partial: Axes, options: PlanOptions
) -> tuple[list[PlanCandidate | None], tuple[Reblock, ...]]:
    """The candidates without a stop, the padded one first, and how it changes the block lengths. Nothing is reduced.

    `dims` are the dimensions that change. The others scale all prices alike.
    """
    shape, before, after = (tuple(column) for column in zip(*dims, strict=True)) if dims else ((), (), ())
    padded_shape_ = padded_shape(shape, mesh, before, after)
    even = _even_leg(mesh, zip(padded_shape_, before, after, strict=True), (), (), options)
    resized = _resized(shape, padded_shape_, mesh, before, after, options)
    padded = _padded(mesh, resized, even and even[0])
    candidates = [padded]
    if padded is not None and not options.lists(mesh):
        return candidates, resized
    source, target = (Sharding(mesh.name, split, partial) for split in (before, after))
    per_receiver = tiles_of_a_receiver(mesh, source, target)
    count = per_receiver * mesh.group_size(exchanged_axes(source, target))
    permutes = per_receiver * prod(_fewer_blocks(mesh, dims[dim]) for dim in {step.dim for step in resized})
    if padded is None and (digits := relabelling(mesh, source, target)):
        step = relabel(shape, mesh, source, digits, options.lists(mesh))
        candidates.append(_along("relabelled", mesh, [(step, prod(step.shape))]))
    if options.lists(mesh) and (
        count <= MOST_TILES if padded is None else count <= MANY_TILES and permutes <= options.permutes(mesh)
    ):
        busiest, received = _received_as_tiles(mesh, dims)
        candidates.append(PlanCandidate("tiles", busiest, received, permutes if received else 0))
    return candidates, resized


def _padded(mesh: Mesh, resized: tuple[Reblock, ...], even: PlanCandidate | None) -> PlanCandidate | None:
    """The candidate by an even pair, `even` if that is aligned, and by the steps that change block lengths."""
    if even is None:
        return None
    if not resized:
        return even._replace(kind="padded", between=None)
    steps = [(step, prod(step.shape) // step.shape[step.dim] * step.before) for step in resized]
    return _then(even, _along("padded", mesh, steps))


def _along(kind: Kind, mesh: Mesh, steps: Sequence[tuple[Step, int]]) -> PlanCandidate:
    """The candidate of these steps, each with the elements of the buffer before it."""
    total = PlanCandidate(kind, 0, 0, 0)
    for step, before in steps:
        if relayed := step.relayed(before):
            total = total._replace(relayed=(*total.relayed, relayed))
        else:
            busiest, received = total.busiest + step.received(before), total.received + step.total(before, mesh.size) / mesh.size
            total = total._replace(busiest=busiest, received=received, launches=total.launches + step.collectives)
    return total


def _resized(shape: Shape, whole: Shape, mesh: Mesh, source: Split, target: Split, options: PlanOptions) -> tuple[Reblock, ...]:
    """How the even pair of the tensor padded to `whole` changes block lengths, before and after."""
    before, after = reblocks(shape, whole, mesh, source, target, options.lists(mesh))
    return (*before, *after)


def _fewer_blocks(mesh: Mesh, dim: SplitDim) -> int:
    """The number of blocks of the side that has fewer, which is the number of tile lengths."""
    return min(mesh.group_size(axes) for axes in dim[1:])


def _received_as_tiles(mesh: Mesh, dims: tuple[SplitDim, ...]) -> tuple[float, float]:
    """Elements that the busiest device receives in an exchange of tiles, and the average over devices.

    The busiest device needs a whole block, and owns the least of it.
    """
    if not dims:
        return 0.0, 0.0
    wanted, most = (prod(column) for column in zip(*[_blocks(mesh, dim) for dim in dims], strict=True))
    owned, least = (prod(column) for column in zip(*[_owned(mesh, group) for group in _connected(dims)], strict=True))
    received = wanted - owned
    return (most - least, received) if received > 1e-9 * wanted else (0.0, 0.0)  # rounding of equal products is no tile


def _blocks(mesh: Mesh, dim: SplitDim) -> tuple[float, int]:
    """The lengths of the blocks after: the average and the longest."""
    size, _, after = dim
    count = mesh.group_size(after)
    return size / count, -(-size // count)


def _connected(dims: tuple[SplitDim, ...]) -> list[tuple[SplitDim, ...]]:
    """The dimensions in groups that share no mesh axis."""
    groups: list[tuple[set[int], tuple[SplitDim, ...]]] = []
    for dim in dims:
        axes = {*dim[1], *dim[2]}
        members: tuple[SplitDim, ...] = (dim,)
        for group in [group for group in groups if group[0] & axes]:
            groups.remove(group)
            axes, members = axes | group[0], group[1] + members
        groups.append((axes, members))
    return [members for _, members in groups]


@lru_cache(maxsize=1 << 16)
def _owned(mesh: Mesh, dims: tuple[SplitDim, ...]) -> tuple[float, float]:
    """Elements that a device owns before and needs after, along `dims`: the average and the least."""
    axes = [axis for _, before, after in dims for axis in (*before, *after)]
    if len(set(axes)) == len(axes):  # each pair of blocks is on as many devices, and their overlaps add up to the tensor
        return prod(size for size, _, _ in dims) / mesh.group_size(axes), prod(_least_owned(mesh, dim) for dim in dims)
    met: Grid = np.ones(())
    wanted: Grid = np.ones(())
    for dim in dims:
        shared, block = _overlaps(mesh, sorted(set(axes)), dim)
        met, wanted = met * shared, wanted * block
    longest: Grid = np.broadcast_to(wanted == wanted.max(), met.shape)
    return float(met.sum() / met.size), float(met[longest].min())


def _least_owned(mesh: Mesh, dim: SplitDim) -> int:
    """The fewest elements that a block before, or all of the dimension, shares with a longest block after, along axes of its
    own."""
    size, before, after = dim
    count = mesh.group_size(before)
    if not after:
        return max(0, size - (count - 1) * -(-size // count))
    return 0 if before else -(-size // mesh.group_size(after))


def _overlaps(mesh: Mesh, axes: list[int], dim: SplitDim) -> tuple[Grid, Grid]:
    """Elements that the blocks before and after share, and elements of the blocks after, by the coordinates along `axes`; length
    1 along axes that do not matter."""
    low: Grid = np.zeros(())
    length, *sides = dim
    high: Grid = np.full((), length)
    block: Grid = high
    for side in sides:
        count = mesh.group_size(side)
        starts = np.minimum(np.arange(count + 1) * -(-length // count), length)
        sizes, order = [mesh.shape[axis] for axis in side], np.argsort(side)
        grid_shape = [mesh.shape[axis] if axis in side else 1 for axis in axes]
        start, stop = (ends.reshape(sizes).transpose(order).reshape(grid_shape) for ends in (starts[:-1], starts[1:]))
        low, high, block = np.maximum(low, start), np.minimum(high, stop), stop - start
    shared: Grid = (high - low).clip(0)
    return shared, block
