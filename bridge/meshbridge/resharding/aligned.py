"""Plans between aligned shardings: slices, one reduction, one exchange at the smallest size, one all-gather.

Each digit of the device number is a link from the position it shards in the source to the one it shards in the target, so the
links form disjoint paths and cycles. A path's type says what to do:

    starts at no position, ends at a local one      slice the last position by the first digit (reduce-scatter a partial digit)
    starts at a local position, ends at none        all-gather the first position
    starts and ends at local positions              all-to-all
    starts and ends at none, or a cycle             nothing, or a permute where two digits or more move

Paths of several digits are *twisted*: each of their digits takes the position of the next, which is a permute, alone or fused
with the all-to-all. Every byte that is sent belongs to the receiver's target shard and is sent once, which is the lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, prod

from meshbridge.ir.digits import Digit, Digits, group_size
from meshbridge.ir.sharding import Axes
from meshbridge.resharding.alignment import Alignment, Position
from meshbridge.resharding.local import LocalBuffer
from meshbridge.resharding.steps import Permute, Relay, Step

Labels = dict[Position, Digit]


@dataclass(frozen=True)
class Recipe:
    """How to plan one aligned pair."""

    fused: bool = True
    "Do twisted paths and all-to-alls in one exchange of n permutes, at the bound; if not, in a permute and an all-to-all."

    apart: bool = False
    "Gather each run of positions by itself, so that the target needs no transpose at the end: along `slowest` first, the"
    " largest run last."

    relayed: bool = False
    "Relabel by all-to-alls, which list no pair of devices."

    slowest: Axes = ()
    "Axes along which bytes take longer than along others, the slowest first."

    spread: bool = False
    "Scatter over the partial digits that the target does not use, share the reduction among copies, and gather at the end."


@dataclass
class _Relabelling:
    """The links that are left after all slices, as sources and targets of a relabelling."""

    sources: list[Digit] = field(default_factory=list)
    targets: list[Digit] = field(default_factory=list)
    exchanged: list[tuple[Position, Position, int]] = field(default_factory=list)
    "Local-to-local paths: the position that becomes local, the one that becomes sharded, the index of their first digit."
    relabelled: Labels = field(default_factory=dict)
    "The labels of the twisted positions after the relabelling alone."

    def add(self, start: Position | None, digits: list[Digit], end: Position | None, between: list[Position]) -> None:
        """Adds one path; `between` are the positions between two of its digits."""
        if start is not None and end is not None:
            self.exchanged.append((start, end, len(self.sources)))
        elif len(digits) == 1:
            return  # a plain gather, or a digit that stays
        self.sources += digits
        self.targets += [digits[-1], *digits[:-1]]
        self.relabelled |= dict(zip(between, digits, strict=False))
        if start is not None:
            self.relabelled[start] = digits[-1]

    @property
    def twisted(self) -> list[int]:
        """Indices at which sources and targets differ."""
        return [i for i, source in enumerate(self.sources) if source != self.targets[i]]


def aligned_steps(alignment: Alignment, partial: Digits, unused: Digits, kind: str, recipe: Recipe) -> list[Step]:
    """The steps from source to target for local shards that divide evenly.

    `partial` are the digits to reduce over by `kind`; `unused` those along which the source holds copies.
    """
    labels: Labels = {position: position.source for position in alignment.positions if position.source is not None}
    goal: Labels = {position: position.target for position in alignment.positions if position.target is not None}
    entries = sliced_positions(labels, goal)
    local = [position for position in alignment.positions if position not in labels]
    if recipe.spread:
        idle = [digit for digit in (*partial, *unused) if digit not in entries.values()]
        local = with_free_positions(local, idle, entries)
    buffer = LocalBuffer(local)
    _reduce_and_slice(buffer, entries, partial, kind)
    labels |= entries
    _exchange(buffer, labels, goal, recipe)
    _gather(buffer, {position: digit for position, digit in labels.items() if position not in goal}, recipe)
    buffer.finish()
    return buffer.steps


def _gather(buffer: LocalBuffer, labels: Labels, recipe: Recipe) -> None:
    """Makes the positions in `labels` local."""
    if not recipe.apart:
        runs = [list(labels)] if labels else []
    else:
        buffer.reorder(sorted(buffer.order, key=lambda position: position.order))
        rank = {axis: i - len(recipe.slowest) for i, axis in enumerate(recipe.slowest)}

        def by_speed_and_size(run: list[Position]) -> tuple[int, int]:
            slowest = min(rank.get(labels[position].axis, 0) for position in run)
            return slowest, prod(position.radix for position in run)

        runs = sorted(buffer.runs(list(labels)), key=by_speed_and_size)
    for run in runs:
        buffer.gather({position: (labels[position],) for position in run})


def sliced_positions(labels: Labels, goal: Labels) -> Labels:
    """For every path that starts at no position: its local end, which is sliced along the first digit of the path."""
    entered = {digit: position for position, digit in goal.items()}
    placed_digits = set(labels.values())
    entries: Labels = {}
    for digit in (digit for digit in entered if digit not in placed_digits):
        end: Position | None = entered[digit]
        while end in labels:
            end = entered.get(labels[end])
        if end is not None:  # if None, the path ends at no position: a permute
            entries[end] = digit
    return entries


def _reduce_and_slice(buffer: LocalBuffer, entries: Labels, partial: Digits, kind: str) -> None:
    """Slices first, so that less is reduced. All-reduces an axis if one of its digits has no position to scatter to."""
    unscattered_axes = {digit.axis for digit in partial if digit not in entries.values()}
    sliced, scattered, sliced_after = dict[Position, Digits](), dict[Position, Digits](), dict[Position, Digits]()
    for position, digit in entries.items():
        destination = sliced if digit not in partial else sliced_after if digit.axis in unscattered_axes else scattered
        destination[position] = (digit,)
    buffer.slice(sliced)
    if scattered:
        buffer.reduce_scatter(scattered, kind)
    if unscattered_axes:
        buffer.all_reduce(tuple(digit for digit in partial if digit.axis in unscattered_axes), kind)
    buffer.slice(sliced_after)


def with_free_positions(local: list[Position], digits: list[Digit], entries: Labels) -> list[Position]:
    """Enters each of `digits`, the largest first, at a new position, split off a local remainder that it divides: the remainder
    that has most in common with all digits, the outermost among equals.

    A digit that divides no remainder is not entered.
    """
    local, room = list(local), group_size(tuple(digits))
    for digit in sorted(digits, key=lambda digit: -digit.radix):
        wholes = [p for p in local if p.source is None and p.target is None and p not in entries and p.radix % digit.radix == 0]
        if wholes:
            widest = max(wholes, key=lambda position: gcd(position.radix, room))
            index = local.index(widest)
            free = widest._replace(radix=digit.radix)
            local[index : index + 1] = [free, widest._replace(place=widest.place + 1, radix=widest.radix // digit.radix)]
            entries[free] = digit
    return local


def _exchange(buffer: LocalBuffer, labels: Labels, goal: Labels, recipe: Recipe) -> None:
    """Brings every digit that the target uses to its position."""
    exchange = links(labels, goal)
    twisted = exchange.twisted
    if twisted and (not exchange.exchanged or not recipe.fused or recipe.relayed):
        sources, targets = (tuple(listed[i] for i in twisted) for listed in (exchange.sources, exchange.targets))
        buffer.relabel(sources, targets, Relay if recipe.relayed else Permute)
        labels |= exchange.relabelled
        exchange = links(labels, goal)
        twisted = exchange.twisted
    if not exchange.exchanged:
        return
    if twisted:
        buffer.rounds(tuple(exchange.sources), tuple(exchange.targets), exchange.exchanged)
        labels |= exchange.relabelled
    else:
        buffer.all_to_all([(source, entered, (labels[source],)) for source, entered, _ in exchange.exchanged])
    for source, entered_position, _ in exchange.exchanged:
        labels[entered_position] = goal[entered_position]
        del labels[source]


def links(labels: Labels, goal: Labels) -> _Relabelling:
    """The paths and cycles of digits between the labels of the positions and the labels that they shall get."""
    entered_position = {digit: position for position, digit in goal.items()}
    exchange, visited = _Relabelling(), set[Digit]()
    starts = [digit for position, digit in labels.items() if position not in goal]  # paths that leave a position for good
    starts += [digit for digit in entered_position if digit not in labels.values()]  # paths that come from no position
    held_position = {digit: position for position, digit in labels.items()}
    for start in [*starts, *held_position]:
        if start in visited:
            continue
        digits, between, position = [start], [], entered_position.get(start)
        visited.add(start)
        while position in labels and (following := labels[position]) not in visited:
            between.append(position)
            digits.append(following)
            visited.add(following)
            position = entered_position.get(following)
        if position is not None and labels.get(position) == start:  # a cycle; it ends where it began
            if len(digits) > 1:
                exchange.add(None, digits, None, between)
                exchange.relabelled[position] = digits[-1]
            continue
        start_position = held_position.get(start)
        exchange.add(start_position if start_position not in goal else None, digits, position, between)
    return exchange
