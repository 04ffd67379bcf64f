"""What resharding sends, without a plan: a formula over the digits of the mesh, in elements that a device receives on average.

A plan between aligned shardings (`aligned`) slices, reduces, exchanges and gathers. Each digit of the device number belongs to
one of these. So the size n of the buffer before each of them follows, and with it what is received:
    reduce-scatter over s    n - n / s
    all-reduce over w        2 (n - n / w)
    exchange                 n - n * (the share that stays)
    all-gather               the target's shard - n

An exchange keeps what the device already holds: one part in the radix for each link of digits, except those that close a cycle.

A `floor` is a quick lower bound. Between most pairs it equals the price.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import zip_longest
from math import gcd, inf, prod
from operator import mod
from typing import NamedTuple

from meshbridge.ir.digits import Digit
from meshbridge.ir.groups import lists_devices
from meshbridge.ir.relays import Relayed, RelayedAllToAll, relabelled
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.resharding.paths import Path, Paths, SplitDim, paths_between
from meshbridge.resharding.routes import reduced_axes
from meshbridge.resharding.steps import Shape


class Received(NamedTuple):
    """Elements that the busiest device receives, elements that a device receives on average, the number of collectives, and
    whether a reduction first may save some. All-to-alls in the place of permutes are counted apart, in `relayed`."""

    busiest: float
    average: float
    launches: int
    stop: bool
    relayed: tuple[Relayed, ...] = ()

    def of(self, elements: float, before: int = 1) -> Received:
        """The same for a tensor of `elements`, scaled from a tensor of `before` elements."""
        part = 1 / before
        relayed = tuple([relay.times(part).times(elements) for relay in self.relayed])
        return Received(self.busiest * part * elements, self.average * part * elements, self.launches, self.stop, relayed)

    @property
    def received(self) -> float:
        """Elements that a device receives on average, all-to-alls in the place of permutes included."""
        return self.average + sum([relay.sent[0] for relay in self.relayed])

    @property
    def collectives(self) -> int:
        """All collectives, those in the place of permutes included."""
        return self.launches + sum([relay.sent[1] for relay in self.relayed])


class Floor(NamedTuple):
    """The least that a device receives on average, in elements."""

    received: float
    is_price: bool
    "Whether the best plan receives no more."
    launches: int
    "The number of collectives of the best plan; 0 if unknown."


class _ShardingPair(NamedTuple):
    """What two shardings tell about a floor, whatever the sizes."""

    parts: float
    "The number of parts of the tensor in the target; infinite if there is no bound."
    blocks: tuple[int, ...]
    "Per dimension, the number of blocks of the side that has more."
    most: int
    "Their product."
    reduced: float | None
    "The part of the tensor that is also received as terms; None if nothing is reduced."
    is_lean: bool
    "Whether no more than the floor is received if all blocks are even."
    launches: int = 0
    "The number of collectives; 0 if unknown."
    fewer: tuple[int, ...] = ()
    "Per dimension, the number of blocks of the side that has fewer; empty if uneven blocks may be exchanged as tiles."


def floor(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Floor:
    """The least that resharding receives: the elements that a device needs, less those that it can hold already. A reduction
    receives all terms of an element but one, and then the element on all devices that need it but one. Halos and offsets have no
    floor."""
    pair = _pair(mesh, source, target)
    elements, even = prod(shape), not any(map(mod, shape, pair.blocks))
    if even:
        held_before = elements // pair.most
    else:
        held_before = prod([-(-size // count) for size, count in zip_longest(shape, pair.blocks, fillvalue=1)])
        if pair.is_lean and pair.fewer and (padded := _padded(shape, pair)):
            even, elements = True, padded
    wanted = elements / pair.parts
    received = wanted - held_before if pair.reduced is None else wanted + elements * pair.reduced
    return Floor(max(0.0, received), even and pair.is_lean, pair.launches)


def _padded(shape: Shape, pair: _ShardingPair) -> int | None:
    """Elements of the tensor padded so that both sides divide it evenly; None if padding changes the block lengths."""
    elements = 1
    for size, count, fewer in zip_longest(shape, pair.blocks, pair.fewer, fillvalue=1):
        padded = -(-size // count) * count
        if fewer > 1 and -(-size // fewer) * fewer != padded:
            return None
        elements *= padded
    return elements


@lru_cache(maxsize=1 << 16)
def _pair(mesh: Mesh, source: Sharding, target: Sharding) -> _ShardingPair:
    if not (source.is_plain and target.is_plain):
        return _ShardingPair(inf, (), 1, 0.0, is_lean=False)
    sizes, partial = mesh.group_sizes, source.partial_axes
    splits = list(zip_longest(source.split_axes, target.split_axes, fillvalue=()))
    befores, afters = [sizes[before] for before, _ in splits], [sizes[after] for _, after in splits]
    blocks, fewer = tuple(map(max, befores, afters)), () if lists_devices(mesh) else tuple(map(min, befores, afters))
    parts, most = prod(afters), prod(blocks)
    if partial == target.partial_axes:
        is_lean = all(before[: len(after)] == after[: len(before)] for before, after in splits)
        is_lean = is_lean and (not partial or source.partial_kind == target.partial_kind)
        return _ShardingPair(parts, blocks, most, None, is_lean, _gathers(splits, befores, afters) if is_lean else 0, fewer)
    terms = sizes[partial]
    if terms == 1 or target.partial_axes:
        return _ShardingPair(inf, blocks, most, 0.0, is_lean=False)
    all_used = prod(befores) * terms == mesh.size
    stays = all(before == after[: len(before)] for before, after in splits)
    scattered = {axis for _, after in splits for axis in after}.intersection(partial)
    launches = (sizes[tuple(scattered)] > 1) + (sizes[tuple(scattered.symmetric_difference(partial))] > 1)
    return _ShardingPair(parts, blocks, most, (terms - 2) / mesh.size, all_used and stays, launches, fewer)


def _gathers(splits: list[tuple[Axes, Axes]], befores: list[int], afters: list[int]) -> int:
    """The all-gathers of a lean pair: one for each dimension that the target splits less; 0 if an axis changes dimensions."""
    used = {axis for before, _ in splits for axis in before}
    if not all(used.isdisjoint(after[len(before) :]) for before, after in splits):
        return 0
    return sum(before > after for before, after in zip(befores, afters, strict=True))


def even_price(mesh: Mesh, dims: Iterable[SplitDim], reduced: Axes, copied: Axes, rounds: int) -> Received | None:
    """What the best plan without a stop receives between two plain shardings that divide these dimensions evenly, for a value
    that is partial along the axes `reduced` and copied along `copied`.

    None if they have no common number system (`alignment`). `rounds` is the most permutes of an exchange; if it is 0,
    all-to-alls replace them.

    Only those factors of the sizes matter that something is split by: a dimension is known by the axes that split it on one side
    only, and by what it has in common with the groups that may split it further, those that reduce and those that hold copies.
    """
    sizes = mesh.group_sizes
    further = sizes[reduced + copied] if reduced else 1
    elements, smallest, changed_dims = 1, 1, []
    for size, before, after in dims:
        elements *= size
        split = max(sizes[before], sizes[after])
        relevant = split * gcd(size // split, further)
        smallest *= relevant
        while before and after and before[0] == after[0]:
            relevant //= mesh.shape[before[0]]
            before, after = before[1:], after[1:]
        if relevant > 1:
            changed_dims.append((relevant, before, after))
    plans = _plans(mesh, tuple(sorted(changed_dims)), reduced, copied if reduced else (), rounds)
    scaled = [plan.of(elements, smallest) for plan in plans]
    if len(scaled) > 1:
        return min(scaled, key=lambda plan: plan.busiest + sum([relayed.sent[0] for relayed in plan.relayed]))
    return scaled[0] if scaled else None


@lru_cache(maxsize=1 << 16)
def even_share(mesh: Mesh, source: Sharding, target: Sharding, rounds: int) -> Received | None:
    """What is received per element of any tensor that both shardings divide evenly; None if the best plan depends on sizes."""
    if reduced_axes(source, target) != ((), ()):
        return None
    splits = zip(source.split_axes, target.split_axes, strict=True)
    dims = [(max(mesh.group_size(before), mesh.group_size(after)), before, after) for before, after in splits]
    price = even_price(mesh, dims, (), (), rounds)
    return None if price is None or price.stop else price.of(1 / prod([size for size, _, _ in dims]))


@lru_cache(maxsize=1 << 16)
def _plans(mesh: Mesh, dims: tuple[SplitDim, ...], reduced: Axes, copied: Axes, rounds: int) -> tuple[Received, ...]:
    """What each plan receives that may be the best for a tensor of these dimensions; empty if there is no common number
    system."""
    paths = paths_between(mesh, dims)
    if paths is None:
        return ()
    partial, entries = paths.of(reduced), paths.entries
    idle = [number for number in (*partial, *paths.of(copied)) if number not in entries] if reduced else []
    plans = [_received(paths, entries, {}, partial, idle, rounds)]
    if idle:  # they scatter the reduction too, if there is room for them
        scattered = _in_free_positions(paths, idle)
        idle = [number for number in idle if number not in scattered]
        plans.append(_received(paths, entries | scattered, scattered, partial, idle, rounds))
    if not any(plan.relayed for plan in plans):
        plans = [min(plans)]
    return tuple(plans)


def _in_free_positions(paths: Paths, idle: list[int]) -> dict[int, int]:
    """The digits of `idle` that can scatter a local part, as in `aligned.with_free_positions`, with their radices."""
    free, room, radices = list(paths.free), prod([paths.radices[number] for number in idle]), {}
    for number in sorted(idle, key=lambda number: -paths.radices[number]):
        radix = paths.radices[number]
        divisible = [dim for dim, size in enumerate(free) if size % radix == 0]
        if divisible:
            free[max(divisible, key=lambda dim: gcd(free[dim], room))] //= radix
            radices[number] = radix
    return radices


def _received(
    paths: Paths, entries: dict[int, int], scattered_alone: Collection[int], partial: list[int], idle: list[int], rounds: int
) -> Received:
    """What the plan that reduces over the digits `partial` receives, after slices or scatters by `entries`.

    `idle` are the digits that reduce or hold copies and scatter nothing. A relabelling is fused with an all-to-all if that takes
    at most `rounds` permutes.
    """
    n: float = paths.source_elements
    stop = bool(idle)
    all_reduced_axes = {paths.axes[number] for number in idle if number in partial}
    late = scattered = 1
    for number, radix in entries.items():
        if number not in partial:
            n /= radix
        elif paths.axes[number] in all_reduced_axes:
            late *= radix
        else:
            scattered *= radix
    total = n - n / scattered
    n /= scattered
    reduced = prod([paths.radices[number] for number in partial if paths.axes[number] in all_reduced_axes])
    total += 2 * (n - n / reduced)
    n /= late
    total += paths.target_elements - n
    launches = (scattered > 1) + (reduced > 1) + (max(1, len(paths.gathered)) if paths.target_elements > n else 0)
    exchanged = paths.exchanged
    twisted = paths.twisted(scattered_alone)
    if not twisted:
        total += n - n / exchanged
        return Received(total, total, launches + (exchanged > 1), stop)
    if not rounds:
        total += n - n / exchanged
        return Received(total, total, launches + (exchanged > 1), bool(partial), (Relayed(n, _relabelled(twisted)),))
    unmoved = n
    for radix, length in twisted:
        unmoved /= radix ** (length - 1)
    if exchanged <= rounds:
        return Received(total + n, total + n - unmoved / exchanged, launches + exchanged, stop)
    total += n - n / exchanged
    return Received(total + n, total + n - unmoved, launches + 2, stop or bool(partial))


@lru_cache(maxsize=1 << 10)
def _relabelled(twisted: tuple[Path, ...]) -> tuple[tuple[RelayedAllToAll, ...], ...]:
    """The ways to relabel digits along these paths."""
    sources: list[Digit] = []
    targets: list[Digit] = []
    for radix, length in twisted:
        digits = [Digit(len(sources) + i, radix, 1) for i in range(length)]
        sources += digits
        targets += [digits[-1], *digits[:-1]]
    return relabelled(tuple(sources), tuple(targets))
