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
    """What distinguishes the plans for one aligned pair."""

    fused: bool = True
    "Twisted paths and all-to-alls in one exchange of n permutes, at the bound; otherwise a permute and an all-to-all."

    apart: bool = False
    "One all-gather for each run of positions, so that the target is not transposed in the end: those along"
    " `slowest` first, the last the largest."

    relayed: bool = False
    "Relabel by all-to-alls: no pair of devices is listed."

    slowest: Axes = ()
    "Axes along which bytes take longer than along others, the slowest first."

    spread: bool = False
    "Scatter the partial digits that the target does not use, divide the reduction among copies, and gather in the end."


@dataclass
class _Relabelling:
    """The links that remain when everything is sliced, as sources and targets of a relabelling."""

    sources: list[Digit] = field(default_factory=list)
    targets: list[Digit] = field(default_factory=list)
    moved: list[tuple[Position, Position, int]] = field(default_factory=list)
    "Local-to-local paths: the position they leave, the one they enter, and the index of their first digit in `sources`."
    relabelled: Labels = field(default_factory=dict)
    "What the twisted positions are labelled with after the relabelling alone."

    def add(self, first: Position | None, digits: list[Digit], last: Position | None, between: list[Position]) -> None:
        """Adds one path; `between` are the positions between two of its digits."""
        if first is not None and last is not None:
            self.moved.append((first, last, len(self.sources)))
        elif len(digits) == 1:
            return  # a plain gather, or a digit that stays
        self.sources += digits
        self.targets += [digits[-1], *digits[:-1]]
        self.relabelled |= dict(zip(between, digits, strict=False))
        if first is not None:
            self.relabelled[first] = digits[-1]

    @property
    def twisted(self) -> list[int]:
        """Places at which sources and targets differ."""
        return [i for i, source in enumerate(self.sources) if source != self.targets[i]]


def aligned_steps(alignment: Alignment, partial: Digits, unused: Digits, kind: str, recipe: Recipe) -> list[Step]:
    """The steps from source to target for local shards that divide evenly.

    `partial` are the digits to reduce over by `kind`; `unused` those along which the source holds copies.
    """
    labels: Labels = {position: position.source for position in alignment.positions if position.source is not None}
    goal: Labels = {position: position.target for position in alignment.positions if position.target is not None}
    entries = entries_of(labels, goal)
    local = [position for position in alignment.positions if position not in labels]
    if recipe.spread:
        idle = [digit for digit in (*partial, *unused) if digit not in entries.values()]
        local = with_free_places(local, idle, entries)
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
        places = {axis: place - len(recipe.slowest) for place, axis in enumerate(recipe.slowest)}

        def first_the_slowest(run: list[Position]) -> tuple[int, int]:
            slowest = min(places.get(labels[position].axis, 0) for position in run)
            return slowest, prod(position.radix for position in run)

        runs = sorted(buffer.runs(list(labels)), key=first_the_slowest)
    for run in runs:
        buffer.gather({position: (labels[position],) for position in run})


def entries_of(labels: Labels, goal: Labels) -> Labels:
    """The local end of every path that starts at no position, with the digit that it is sliced along: the first of the path."""
    entered = {digit: position for position, digit in goal.items()}
    held = set(labels.values())
    entries: Labels = {}
    for digit in (digit for digit in entered if digit not in held):
        end: Position | None = entered[digit]
        while end in labels:
            end = entered.get(labels[end])
        if end is not None:  # otherwise the path ends at no position: a permute
            entries[end] = digit
    return entries


def _reduce_and_slice(buffer: LocalBuffer, entries: Labels, partial: Digits, kind: str) -> None:
    """Slices first, so that less is reduced. An axis of which a digit has no position to be scattered to is all-reduced."""
    waiting = {digit.axis for digit in partial if digit not in entries.values()}
    cut, scattered, late = dict[Position, Digits](), dict[Position, Digits](), dict[Position, Digits]()
    for position, digit in entries.items():
        place = cut if digit not in partial else late if digit.axis in waiting else scattered
        place[position] = (digit,)
    buffer.slice(cut)
    if scattered:
        buffer.reduce_scatter(scattered, kind)
    if waiting:
        buffer.all_reduce(tuple(digit for digit in partial if digit.axis in waiting), kind)
    buffer.slice(late)


def with_free_places(local: list[Position], digits: list[Digit], entries: Labels) -> list[Position]:
    """Makes a position for each of `digits`, the largest first, out of a local remainder that it divides, and enters it there:
    out of the one that has most in common with all digits, of equals the outermost.

    A digit for which there is none goes without.
    """
    local, room = list(local), group_size(tuple(digits))
    for digit in sorted(digits, key=lambda digit: -digit.radix):
        whole = [p for p in local if p.source is None and p.target is None and p not in entries and p.radix % digit.radix == 0]
        if whole:
            widest = max(whole, key=lambda position: gcd(position.radix, room))
            at = local.index(widest)
            free = widest._replace(radix=digit.radix)
            local[at : at + 1] = [free, widest._replace(place=widest.place + 1, radix=widest.radix // digit.radix)]
            entries[free] = digit
    return local


def _exchange(buffer: LocalBuffer, labels: Labels, goal: Labels, recipe: Recipe) -> None:
    """Brings every digit that the target uses to its position."""
    exchange = links(labels, goal)
    twisted = exchange.twisted
    if twisted and (not exchange.moved or not recipe.fused or recipe.relayed):
        sources, targets = (tuple(listed[i] for i in twisted) for listed in (exchange.sources, exchange.targets))
        buffer.relabel(sources, targets, Relay if recipe.relayed else Permute)
        labels |= exchange.relabelled
        exchange = links(labels, goal)
        twisted = exchange.twisted
    if not exchange.moved:
        return
    if twisted:
        buffer.rounds(tuple(exchange.sources), tuple(exchange.targets), exchange.moved)
        labels |= exchange.relabelled
    else:
        buffer.all_to_all([(left, entered, (labels[left],)) for left, entered, _ in exchange.moved])
    for left, entered, _ in exchange.moved:
        labels[entered] = goal[entered]
        del labels[left]


def links(labels: Labels, goal: Labels) -> _Relabelling:
    """The paths and cycles of digits between what the positions are labelled with and what they shall be."""
    entered = {digit: position for position, digit in goal.items()}
    exchange, seen = _Relabelling(), set[Digit]()
    starts = [digit for position, digit in labels.items() if position not in goal]  # paths that leave a position for good
    starts += [digit for digit in entered if digit not in labels.values()]  # paths that come from no position
    held = {digit: position for position, digit in labels.items()}
    for start in [*starts, *held]:
        if start in seen:
            continue
        digits, between, position = [start], [], entered.get(start)
        seen.add(start)
        while position in labels and (following := labels[position]) not in seen:
            between.append(position)
            digits.append(following)
            seen.add(following)
            position = entered.get(following)
        if position is not None and labels.get(position) == start:  # a cycle; it ends where it began
            if len(digits) > 1:
                exchange.add(None, digits, None, between)
                exchange.relabelled[position] = digits[-1]
            continue
        first = held.get(start)
        exchange.add(first if first not in goal else None, digits, position, between)
    return exchange
