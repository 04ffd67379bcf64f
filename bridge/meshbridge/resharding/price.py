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

from collections.abc import Collection
from functools import lru_cache
from itertools import zip_longest
from math import gcd, inf, prod
from typing import NamedTuple

from meshbridge.ir.digits import Digit, Digits
from meshbridge.ir.groups import lists_devices
from meshbridge.ir.relays import Relayed, relabelled
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.resharding.aligned import Labels, entries_of, links, with_free_places
from meshbridge.resharding.alignment import Alignment, align
from meshbridge.resharding.routes import reduced_axes
from meshbridge.resharding.steps import Shape, still


class Received(NamedTuple):
    """Elements that the busiest device receives, those that a device receives on average, in how many collectives, and whether a
    reduction before may save some; what is sent in the place of permutes is apart."""

    busiest: float
    average: float
    launches: int
    stop: bool
    relayed: tuple[Relayed, ...] = ()

    def of(self, elements: float) -> Received:
        """The same of a tensor of so many `elements`, where this is of one of a single element."""
        relayed = tuple([each.times(elements) for each in self.relayed])
        return self._replace(busiest=self.busiest * elements, average=self.average * elements, relayed=relayed)

    @property
    def received(self) -> float:
        """Elements that a device receives on average, with what is sent in the place of permutes."""
        return self.average + sum([each.sent[0] for each in self.relayed])


class Floor(NamedTuple):
    """Elements that a device receives at least, on average."""

    received: float
    is_price: bool
    "Whether the best plan receives no more."


class _Pair(NamedTuple):
    """What two shardings say of a floor whatever the sizes."""

    parts: float
    "How many parts of the tensor the target has; infinitely many where nothing is said."
    blocks: tuple[int, ...]
    "Per dimension, how many blocks the side has that has more."
    reduced: float | None
    "The part of the tensor that is received beside, as terms; None where nothing is reduced."
    is_lean: bool
    "Whether no more than the floor is received if all blocks are even."
    fewer: tuple[int, ...] = ()
    "Per dimension, how many blocks the side has that has fewer; nothing where uneven blocks may be exchanged as tiles."


def floor(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Floor:
    """What resharding receives at least (nothing is said of halos and offsets): of what a device is to hold, all that it
    cannot hold already. Where a value is reduced, all terms of an element but one, and then the element, on all devices that are
    to hold it but one."""
    pair = _pair(mesh, source, target)
    even, held, elements = True, 1, prod(shape)
    for size, count in zip_longest(shape, pair.blocks, fillvalue=1):
        block = -(-size // count)
        held *= block
        even = even and block * count == size
    if not even and pair.is_lean and pair.fewer and (padded := _padded(shape, pair)):
        even, elements = True, padded
    wanted = elements / pair.parts
    received = wanted - held if pair.reduced is None else wanted + elements * pair.reduced
    return Floor(max(0.0, received), even and pair.is_lean)


def _padded(shape: Shape, pair: _Pair) -> int | None:
    """Elements of the tensor padded so that both sides divide it evenly; None where that changes the lengths of blocks."""
    elements = 1
    for size, count, fewer in zip_longest(shape, pair.blocks, pair.fewer, fillvalue=1):
        padded = -(-size // count) * count
        if fewer > 1 and -(-size // fewer) * fewer != padded:
            return None
        elements *= padded
    return elements


@lru_cache(maxsize=1 << 16)
def _pair(mesh: Mesh, source: Sharding, target: Sharding) -> _Pair:
    if not (source.is_plain and target.is_plain):
        return _Pair(inf, (), 0.0, is_lean=False)
    splits = list(zip_longest(source.split_axes, target.split_axes, fillvalue=()))
    counts = [(mesh.group_size(before) if before else 1, mesh.group_size(after) if after else 1) for before, after in splits]
    blocks, fewer = tuple(map(max, counts)), () if lists_devices(mesh) else tuple(map(min, counts))
    parts, partial = prod([after for _, after in counts]), source.partial_axes
    if partial == target.partial_axes:
        is_lean = all(before[: len(after)] == after[: len(before)] for before, after in splits)
        return _Pair(parts, blocks, None, is_lean and (not partial or source.partial_kind == target.partial_kind), fewer)
    terms = mesh.group_size(partial)
    if terms == 1 or target.partial_axes:
        return _Pair(inf, blocks, 0.0, is_lean=False)
    all_used = prod([before for before, _ in counts]) * terms == mesh.size
    stays = all(before == after[: len(before)] for before, after in splits)
    return _Pair(parts, blocks, (terms - 2) / mesh.size, all_used and stays, fewer)


def even_price(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, rounds: int) -> Received | None:
    """What the best plan without a stop receives between two plain shardings that divide `shape` evenly.

    None where they have no common number system (`alignment`). `rounds` is the most permutes that an exchange may take; where it
    is 0, all-to-alls do the work of one.

    Of the sizes only those factors matter by which something is split: a dimension is known by how it is split on both sides,
    and by what it has in common with the groups that may divide it further, those that reduce and those that hold copies.
    """
    reduced, _ = reduced_axes(source, target)
    copied = source.copied_axes(mesh) if reduced else ()
    further = mesh.group_size(reduced + copied)
    dims = []
    for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
        split = max(mesh.group_size(before), mesh.group_size(after))
        if (kept := split * gcd(size // split, further)) > 1:
            dims.append((kept, before, after))
    elements = prod(shape)
    found = [share.of(elements) for share in _shares(mesh, tuple(sorted(dims)), reduced, copied, rounds)]
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
    shape = tuple([max(mesh.group_size(before), mesh.group_size(after)) for before, after in splits])
    found = even_price(shape, mesh, source, target, rounds)
    return None if found is None or found.stop else found.of(1 / prod(shape))


@lru_cache(maxsize=1 << 16)
def _shares(
    mesh: Mesh, dims: tuple[tuple[int, Axes, Axes], ...], reduced: Axes, copied: Axes, rounds: int
) -> tuple[Received, ...]:
    """The same as parts of the tensor, one for each plan that may be the best, none where there is no common number system. Each
    of `dims` is a size and the axes that split it, before and after."""
    shape = tuple([size for size, _, _ in dims])
    alignment = align(shape, mesh, tuple([before for _, before, _ in dims]), tuple([after for _, _, after in dims]))
    if alignment is None:
        return ()
    partial, part = alignment.of(reduced), 1 / prod(shape)
    labels: Labels = {position: position.source for position in alignment.positions if position.source is not None}
    goal: Labels = {position: position.target for position in alignment.positions if position.target is not None}
    entries = entries_of(labels, goal)
    entered = set(entries.values())
    idle = [digit for digit in (*partial, *alignment.of(copied)) if digit not in entered]
    found = [_received(alignment, labels, goal, entries, partial, idle, rounds)]
    if reduced and idle:  # they scatter the reduction too, if there is room for them
        local = [position for position in alignment.positions if position not in labels]
        with_free_places(local, idle, entries)
        entered = set(entries.values())
        idle = [digit for digit in idle if digit not in entered]
        found.append(_received(alignment, labels, goal, entries, partial, idle, rounds))
    if not any(each.relayed for each in found):
        found = [min(found)]
    return tuple([each.of(part) for each in found])


def _received(
    alignment: Alignment, labels: Labels, goal: Labels, entries: Labels, partial: Digits, idle: Collection[Digit], rounds: int
) -> Received:
    """What the plan that reduces over the digits `partial` receives, after slices or scatters to `entries`.

    `idle` are the digits that reduce or hold copies and scatter nothing. A relabelling is part of an all-to-all where that takes
    at most `rounds` permutes.
    """
    n: float = prod([position.radix for position in alignment.positions if position not in labels])
    stop = bool(idle)
    waiting = {digit.axis for digit in idle if digit in partial}
    late = scattered = 1
    for digit in entries.values():
        if digit not in partial:
            n /= digit.radix
        elif digit.axis in waiting:
            late *= digit.radix
        else:
            scattered *= digit.radix
    total = n - n / scattered
    n /= scattered
    reduced = prod([digit.radix for digit in partial if digit.axis in waiting])
    total += 2 * (n - n / reduced)
    n /= late
    gathered = prod([position.radix for position in alignment.positions if position.target is None])
    total += gathered - n
    launches = (scattered > 1) + (reduced > 1) + (gathered > n)
    exchange = links(labels | entries, goal)
    moved = prod([entered.radix for _, entered, _ in exchange.moved])
    twisted = exchange.twisted
    if not twisted:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), stop)
    sources, targets = (tuple([listed[i] for i in twisted]) for listed in (exchange.sources, exchange.targets))
    if not rounds:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), bool(partial), (Relayed(n, relabelled(sources, targets)),))
    same = n * still(sources, targets, 1)
    if moved <= rounds:
        return Received(total + n, total + n - same / moved, launches + moved, stop)
    total += n - n / moved
    return Received(total + n, total + n - same, launches + 2, stop or bool(partial))
