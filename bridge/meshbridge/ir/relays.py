"""All-to-alls that replace a permute: their groups name mesh axes, whereas a permute lists every device.

A device has its buffer in rows, one for each member of a group, the last ones padded. An all-to-all exchanges the digits that
number the members for those that number the rows, so three of them swap two digits of the device's number, or two lists of them:

    rows            over a: a' of (a', b)      over b: b' of (a, b')      over a: rows, now those of (b, a)

Two over all changing digits perform any relabelling: the first gives each device a piece of every buffer, and the second collects
the pieces at their target. This sends least if a buffer has an element for each device. If not, swaps in smaller groups send
less: every relabelling is one or two lists of swaps.

A shift is two all-to-alls too, with the rows shifted between them, or two for each of several *levels* of digits, the innermost
first: elements that wrap around in one level come from the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import NamedTuple

from meshbridge.ir.digits import Digit, Digits, group_size, primes

LAUNCH = 64
"""Additional elements that a device may receive to save one all-to-all."""


class RelayedAllToAll(NamedTuple):
    """All-to-alls: their number, the number of devices, and the size of each part of the data, in buffers, before padding."""

    launches: int
    devices: int
    parts: tuple[int, ...] = (1,)

    def received(self, elements: int) -> int:
        """Elements that each device receives, for a buffer of `elements`."""
        devices = self.devices
        if len(self.parts) == 1:
            return self.launches * (devices - 1) * -(-self.parts[0] * elements // devices)
        return self.launches * (devices - 1) * sum([-(-part * elements // devices) for part in self.parts])


class Swap(NamedTuple):
    """Digits to exchange: those of `left` and `right` with the same index."""

    left: Digits
    right: Digits

    @property
    def over(self) -> tuple[Digits, ...]:
        """The groups of its all-to-alls."""
        return self.left, self.right, self.left


Swaps = tuple[Swap, ...]

Levels = tuple[Digits, ...]
"""Digits of one number, the innermost level first."""


class Relayed(NamedTuple):
    """The all-to-alls that replace permutes of buffers of `elements`, in each of several variants."""

    elements: float
    variants: tuple[tuple[RelayedAllToAll, ...], ...]

    @property
    def sent(self) -> tuple[int, int]:
        """Elements that each device receives, and the number of all-to-alls, of the best variant."""
        _, received, launches, _ = self._best
        return received, launches

    @property
    def best(self) -> int:
        """The index of the best variant; the first of equal ones."""
        return self._best[3]

    @property
    def _best(self) -> tuple[int, int, int, int]:
        elements, totals = round(self.elements), []
        for number, variant in enumerate(self.variants):
            received = launches = 0
            for exchange in variant:
                received += exchange.received(elements)
                launches += exchange.launches
            totals.append((received + LAUNCH * launches, received, launches, number))
        return min(totals, key=itemgetter(0)) if len(totals) > 1 else totals[0]

    def times(self, factor: float) -> Relayed:
        """The same for a buffer `factor` times as large."""
        return Relayed(self.elements * factor, self.variants)


@lru_cache(maxsize=1 << 12)
def relabelled(sources: Digits, targets: Digits) -> tuple[tuple[RelayedAllToAll, ...], ...]:
    """The variants of a relabelling (`steps.Permute`): two all-to-alls of all devices, or lists of swaps."""
    lists = swaps(sources, targets)
    return (
        (RelayedAllToAll(2, group_size(sources)),),
        *(_exchanges([over for swap in each for over in swap.over]) for each in lists),
    )


def _exchanges(groups: Iterable[Digits]) -> tuple[RelayedAllToAll, ...]:
    """One all-to-all over each of `groups`."""
    return tuple(RelayedAllToAll(launches, devices) for devices, launches in Counter(map(group_size, groups)).items())


def cheapest(elements: int, sources: Digits, targets: Digits) -> Swaps:
    """The swaps that send least for a buffer of `elements`; none if two all-to-alls of all devices send less."""
    best = Relayed(elements, relabelled(sources, targets)).best
    return swaps(sources, targets)[best - 1] if best else ()


@lru_cache(maxsize=1 << 12)
def swaps(sources: Digits, targets: Digits) -> tuple[Swaps, ...]:
    """Lists of swaps after which a device has the buffer of the device whose `sources` equal its `targets`, digit by digit, in
    groups from the largest to the smallest; none if digits differ in radix."""
    if any(source.radix != target.radix for source, target in zip(sources, targets, strict=True)):
        return ()
    follow = {
        part: into
        for source, target in zip(sources, targets, strict=True)
        for part, into in zip(_prime_parts(source), _prime_parts(target), strict=True)
    }
    reflections: tuple[list[tuple[Digit, Digit]], ...] = ([], [])
    while follow:
        cycle = [next(iter(follow))]
        while (following := follow.pop(cycle[-1])) != cycle[0]:
            cycle.append(following)
        for sum_of_ends, pairs in enumerate(reflections):  # a rotation is two reflections: j to -j, and then j to 1 - j
            ends = [(j, (sum_of_ends - j) % len(cycle)) for j in range(len(cycle))]
            pairs += [(cycle[a], cycle[b]) for a, b in ends if a < b]
    most = max(map(len, reflections))
    lengths = dict.fromkeys(-(-most // parts) for parts in range(1, most + 1))
    return tuple(tuple(_swap(pairs[at : at + n]) for pairs in reflections for at in range(0, len(pairs), n)) for n in lengths)


def _swap(pairs: list[tuple[Digit, Digit]]) -> Swap:
    ordered = sorted(pairs, key=lambda pair: (pair[0].axis, -pair[0].stride))
    return Swap(tuple(left for left, _ in ordered), tuple(right for _, right in ordered))


def levels(digits: Digits, offset: int) -> tuple[Levels, ...]:
    """Ways to divide the number along `digits` into levels for a shift by `offset`: the innermost level is larger than that."""
    parts = [part for digit in reversed(digits) for part in reversed(_prime_parts(digit))]
    variants: dict[Levels, None] = {}
    least = 2
    while not variants or len(next(reversed(variants))) > 1:
        divided: list[Digits] = []
        for part in parts:
            most = max(least, abs(offset) + 1) if len(divided) == 1 else least
            if divided and group_size(divided[-1]) < most:
                divided[-1] = (part, *divided[-1])
            else:
                divided.append((part,))
        variants[tuple(divided)] = None
        least *= 2
    return tuple(reversed(variants))


def shifted(elements: float, divided: tuple[Levels, ...]) -> Relayed:
    """The all-to-alls of a shift of a buffer of `elements`, `divided` into levels in one of these ways."""
    return Relayed(elements, tuple(_exchanges([level for level in each for _ in range(2)]) for each in divided))


def _prime_parts(digit: Digit) -> Digits:
    """The digit as digits of prime radix, outer to inner."""
    radices = primes(digit.radix)
    return tuple(Digit(digit.axis, radix, digit.stride * prod(radices[i + 1 :])) for i, radix in enumerate(radices))
