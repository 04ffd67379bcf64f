"""What resharding sends, without a plan: a formula over the digits of the mesh, in elements that a device receives on average.

A plan between aligned shardings (`aligned`) slices, reduces, exchanges and gathers. Each digit of the device number says by
itself to which of these it belongs. So the size n of the buffer before each of them follows, and with it what is received:

    reduce-scatter over s    n - n / s
    all-reduce over w        2 (n - n / w)
    exchange                 n - n * (the share that stays)
    all-gather               the target's shard - n

An exchange leaves what the device holds already: one part in the radix for each link of digits but those that close a cycle.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from meshbridge.ir.digits import Digits
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.resharding.aligned import Labels, entries_of, links, with_free_places
from meshbridge.resharding.alignment import Alignment, align
from meshbridge.resharding.relays import Relayed, relabelled
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
def _shares(
    mesh: Mesh, dims: tuple[tuple[int, Axes, Axes], ...], reduced: Axes, copied: Axes, rounds: int
) -> tuple[Received, ...]:
    """The same as parts of the tensor, one for each plan that may be the best, none where there is no common number system. Each
    of `dims` is a size and the axes that split it, before and after."""
    shape = tuple([size for size, _, _ in dims])
    alignment = align(shape, mesh, tuple([before for _, before, _ in dims]), tuple([after for _, _, after in dims]))
    if alignment is None:
        return ()
    partial, unused, elements = alignment.of(reduced), alignment.of(copied), prod(shape)
    found = [
        _received(alignment, partial, unused, spread=spread, rounds=rounds) for spread in ((True, False) if reduced else (False,))
    ]
    if not any(each.relayed for each in found):
        found = [min(found)]
    return tuple([each.of(1 / elements) for each in found])


def _received(alignment: Alignment, partial: Digits, unused: Digits, *, spread: bool, rounds: int) -> Received:
    """What the plan that reduces over the digits `partial` receives.

    `unused` are the digits along which the source holds copies. With `spread`, digits that the target does not use scatter the
    reduction too. A relabelling is part of an all-to-all where that takes at most `rounds` permutes.
    """
    labels: Labels = {position: position.source for position in alignment.positions if position.source is not None}
    goal: Labels = {position: position.target for position in alignment.positions if position.target is not None}
    entries = entries_of(labels, goal)
    local = [position for position in alignment.positions if position not in labels]
    n: float = prod(position.radix for position in local)
    if spread:
        with_free_places(local, [digit for digit in (*partial, *unused) if digit not in entries.values()], entries)
    stop = any(digit not in entries.values() for digit in (*partial, *unused))  # no dimension divides by them
    waiting = {digit.axis for digit in partial if digit not in entries.values()}
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
    reduced = prod(digit.radix for digit in partial if digit.axis in waiting)
    total += 2 * (n - n / reduced)
    n /= late
    gathered = prod(position.radix for position in alignment.positions if position.target is None)
    total += gathered - n
    launches = (scattered > 1) + (reduced > 1) + (gathered > n)
    exchange = links(labels | entries, goal)
    moved = prod(entered.radix for _, entered, _ in exchange.moved)
    if not exchange.twisted:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), stop)
    sources, targets = (tuple(listed[i] for i in exchange.twisted) for listed in (exchange.sources, exchange.targets))
    same = n * still(sources, targets, 1)
    if not rounds:
        total += n - n / moved
        return Received(total, total, launches + (moved > 1), bool(partial), (Relayed(n, relabelled(sources, targets)),))
    if moved <= rounds:
        return Received(total + n, total + n - same / moved, launches + moved, stop)
    total += n - n / moved
    return Received(total + n, total + n - same, launches + 2, stop or bool(partial))
