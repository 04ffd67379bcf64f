"""What resharding sends, without a plan: a formula over the digits of the mesh, in elements that a device receives on average.

A plan between aligned shardings (`aligned`) slices, reduces, exchanges and gathers. Each digit of the device number says by
itself to which of these it belongs. So the size n of the buffer before each of them follows, and with it what is received:

    reduce-scatter over s    n - n / s
    all-reduce over w        2 (n - n / w)
    exchange                 n - n * (the share that stays)
    all-gather               the target's shard - n

An exchange leaves what the device holds already: one part in the radix for each link of digits but those that close a cycle.

Before that is known, a `floor` says what no plan goes below. Between most pairs it is the price.
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
    """Elements that the busiest device receives, those that a device receives on average, in how many collectives, and whether a
    reduction before may save some; what is sent in the place of permutes is apart."""

    busiest: float
    average: float
    launches: int
    stop: bool
    relayed: tuple[Relayed, ...] = ()

    def of(self, elements: float, before: int = 1) -> Received:
        """The same of a tensor of so many `elements`, where this is of one of as many as `before`."""
        part = 1 / before
        relayed = tuple([each.times(part).times(elements) for each in self.relayed])
        return Received(self.busiest * part * elements, self.average * part * elements, self.launches, self.stop, relayed)

    @property
    def received(self) -> float:
        """Elements that a device receives on average, with what is sent in the place of permutes."""
        return self.average + sum([each.sent[0] for each in self.relayed])

    @property
    def collectives(self) -> int:
        """All collectives, with those in the place of permutes."""
        return self.launches + sum([each.sent[1] for each in self.relayed])


class Floor(NamedTuple):
    """Elements that a device receives at least, on average."""

    received: float
    is_price: bool
    "Whether the best plan receives no more."
    launches: int
    "In how many collectives it does; 0 where that is not known."


class _ShardingPair(NamedTuple):
    """What two shardings say of a floor whatever the sizes."""

    parts: float
    "How many parts of the tensor the target has; infinitely many where nothing is said."
    blocks: tuple[int, ...]
    "Per dimension, how many blocks the side has that has more."
    most: int
    "Their product."
    reduced: float | None
    "The part of the tensor that is received beside, as terms; None where nothing is reduced."
    is_lean: bool
    "Whether no more than the floor is received if all blocks are even."
    launches: int = 0
    "In how many collectives; 0 where that is not known."
    fewer: tuple[int, ...] = ()
    "Per dimension, how many blocks the side has that has fewer; nothing where uneven blocks may be exchanged as tiles."


def floor(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Floor:
    """What resharding receives at least (nothing is said of halos and offsets): of what a device is to hold, all that it
    cannot hold already. Where a value is reduced, all terms of an element but one, and then the element, on all devices that are
    to hold it but one."""
    pair = _pair(mesh, source, target)
    elements, even = prod(shape), not any(map(mod, shape, pair.blocks))
    if even:
        held = elements // pair.most
    else:
        held = prod([-(-size // count) for size, count in zip_longest(shape, pair.blocks, fillvalue=1)])
        if pair.is_lean and pair.fewer and (padded := _padded(shape, pair)):
            even, elements = True, padded
    wanted = elements / pair.parts
    received = wanted - held if pair.reduced is None else wanted + elements * pair.reduced
    return Floor(max(0.0, received), even and pair.is_lean, pair.launches)


def _padded(shape: Shape, pair: _ShardingPair) -> int | None:
    """Elements of the tensor padded so that both sides divide it evenly; None where that changes the lengths of blocks."""
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
    """The all-gathers of a lean pair, one for each dimension that is split less; 0 where an axis changes dimensions."""
    used = {axis for before, _ in splits for axis in before}
    if not all(used.isdisjoint(after[len(before) :]) for before, after in splits):
        return 0
    return sum(before > after for before, after in zip(befores, afters, strict=True))


def even_price(mesh: Mesh, dims: Iterable[SplitDim], reduced: Axes, copied: Axes, rounds: int) -> Received | None:
    """What the best plan without a stop receives between two plain shardings that divide these dimensions evenly, of a value that
    is partial along the axes `reduced` and copied along `copied`.

    None where they have no common number system (`alignment`). `rounds` is the most permutes that an exchange may take; where it
    is 0, all-to-alls do the work of one.

    Of the sizes only those factors matter by which something is split: a dimension is known by the axes that split it on either
    side behind those that split it on both, and by what it has in common with the groups that may divide it further, those that
    reduce and those that hold copies.
    """
    sizes = mesh.group_sizes
    further = sizes[reduced + copied] if reduced else 1
    elements, smallest, moved = 1, 1, []
    for size, before, after in dims:
        elements *= size
        split = max(sizes[before], sizes[after])
        kept = split * gcd(size // split, further)
        smallest *= kept
        while before and after and before[0] == after[0]:
            kept //= mesh.shape[before[0]]
            before, after = before[1:], after[1:]
        if kept > 1:
            moved.append((kept, before, after))
    plans = _plans(mesh, tuple(sorted(moved)), reduced, copied if reduced else (), rounds)
    found = [each.of(elements, smallest) for each in plans]
    if len(found) > 1:
        return min(found, key=lambda each: each.busiest + sum([relayed.sent[0] for relayed in each.relayed]))
    return found[0] if found else None


@lru_cache(maxsize=1 << 16)
def even_share(mesh: Mesh, source: Sharding, target: Sharding, rounds: int) -> Received | None:
    """What is received of one element of a tensor, of any that both shardings divide evenly; None where sizes decide how it is
    best resharded."""
    if reduced_axes(source, target) != ((), ()):
        return None
    splits = zip(source.split_axes, target.split_axes, strict=True)
    dims = [(max(mesh.group_size(before), mesh.group_size(after)), before, after) for before, after in splits]
    found = even_price(mesh, dims, (), (), rounds)
    return None if found is None or found.stop else found.of(1 / prod([size for size, _, _ in dims]))


@lru_cache(maxsize=1 << 16)
def _plans(mesh: Mesh, dims: tuple[SplitDim, ...], reduced: Axes, copied: Axes, rounds: int) -> tuple[Received, ...]:
    """What each plan receives that may be the best, of a tensor of these dimensions; none where there is no common number
    system."""
    paths = paths_between(mesh, dims)
    if paths is None:
        return ()
    partial, entries = paths.of(reduced), paths.entries
    idle = [number for number in (*partial, *paths.of(copied)) if number not in entries] if reduced else []
    found = [_received(paths, entries, {}, partial, idle, rounds)]
    if idle:  # they scatter the reduction too, if there is room for them
        scattered = _in_free_places(paths, idle)
        idle = [number for number in idle if number not in scattered]
        found.append(_received(paths, entries | scattered, scattered, partial, idle, rounds))
    if not any(each.relayed for each in found):
        found = [min(found)]
    return tuple(found)


def _in_free_places(paths: Paths, idle: list[int]) -> dict[int, int]:
    """The digits among `idle` that some local part is scattered by, as `aligned.with_free_places` does, to their radices."""
    free, room, found = list(paths.free), prod([paths.radices[number] for number in idle]), {}
    for number in sorted(idle, key=lambda number: -paths.radices[number]):
        radix = paths.radices[number]
        whole = [dim for dim, size in enumerate(free) if size % radix == 0]
        if whole:
            free[max(whole, key=lambda dim: gcd(free[dim], room))] //= radix
            found[number] = radix
    return found


def _received(
    paths: Paths, entries: dict[int, int], scattered_alone: Collection[int], partial: list[int], idle: list[int], rounds: int
) -> Received:
    """What the plan that reduces over the digits `partial` receives, after slices or scatters by `entries`.

    `idle` are the digits that reduce or hold copies and scatter nothing. A relabelling is part of an all-to-all where that takes
    at most `rounds` permutes.
    """
    n: float = paths.held
    stop = bool(idle)
    waiting = {paths.axes[number] for number in idle if number in partial}
    late = scattered = 1
    for number, radix in entries.items():
        if number not in partial:
            n /= radix
        elif paths.axes[number] in waiting:
            late *= radix
        else:
            scattered *= radix
    total = n - n / scattered
    n /= scattered
    reduced = prod([paths.radices[number] for number in partial if paths.axes[number] in waiting])
    total += 2 * (n - n / reduced)
    n /= late
    total += paths.wanted - n
    launches = (scattered > 1) + (reduced > 1) + (max(1, len(paths.gathered)) if paths.wanted > n else 0)
    moved = paths.moved
    twisted = paths.twisted(scattered_alone)
    if not twisted:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), stop)
    if not rounds:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), bool(partial), (Relayed(n, _relabelled(twisted)),))
    same = n
    for radix, length in twisted:
        same /= radix ** (length - 1)
    if moved <= rounds:
        return Received(total + n, total + n - same / moved, launches + moved, stop)
    total += n - n / moved
    return Received(total + n, total + n - same, launches + 2, stop or bool(partial))


@lru_cache(maxsize=1 << 10)
def _relabelled(twisted: tuple[Path, ...]) -> tuple[tuple[RelayedAllToAll, ...], ...]:
    """The ways to relabel digits along these paths, whichever they are."""
    sources: list[Digit] = []
    targets: list[Digit] = []
    for radix, length in twisted:
        digits = [Digit(len(sources) + i, radix, 1) for i in range(length)]
        sources += digits
        targets += [digits[-1], *digits[:-1]]
    return relabelled(tuple(sources), tuple(targets))
