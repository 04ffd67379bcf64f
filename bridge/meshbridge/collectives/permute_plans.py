"""In how many launches several permutes arrive that need not wait for one another: permutes in which more devices send, or one
all-to-all.

What a permute of a group does is a set of *edges*, from a sender to a receiver, that all carry one operand. A *lane* is a set of
edges of which no two share a sender or a receiver, whichever permutes they are of: what one permute can do.

    permutes 0->1, 0->2, 1->0, 1->2, 2->0, 2->1, of which each has one edge
    lanes    {0->1, 1->2, 2->0} and {0->2, 1->0, 2->1}, or an all-to-all of one row for each device
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from meshbridge.ir.digits import Numbers
from meshbridge.resharding.colouring import colour_edges


@dataclass(frozen=True, eq=False)
class Moves:
    """A permute in a group: the member `senders[k]` sends its operand to `receivers[k]`, another one."""

    senders: Numbers
    receivers: Numbers
    size: int
    "Bytes of the operand."


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of several permutes: the number of its permute for each, and its two ends. Each sends `size` bytes, the most that one
    of them has to."""

    permutes: Numbers
    senders: Numbers
    receivers: Numbers
    size: int

    def where(self, chosen: Numbers) -> Edges:
        """Those of the edges for which `chosen` is true, or is their number."""
        return Edges(self.permutes[chosen], self.senders[chosen], self.receivers[chosen], self.size)


@dataclass(frozen=True, eq=False)
class LanePermute:
    """One permute of the lanes, which have the same pairs of devices, one behind the other."""

    lanes: tuple[Edges, ...]

    def sent(self, count: int) -> int:
        """Bytes that all members of a group of `count` send to others."""
        return self.longest * len(self.lanes[0].senders)

    @property
    def longest(self) -> int:
        """Bytes that the busiest member sends."""
        return sum(lane.size for lane in self.lanes)


@dataclass(frozen=True, eq=False)
class LaneExchange:
    """One all-to-all of the edges. Each member has `slots` rows for each, of `edges.size` bytes."""

    edges: Edges
    slot: Numbers
    "Of each edge, the row among those for its receiver."
    slots: int
    count: int

    def sent(self, count: int) -> int:
        """See `LanePermute`."""
        return self.longest * count

    @property
    def longest(self) -> int:
        """See `LanePermute`."""
        return (self.count - 1) * self.slots * self.edges.size

    @property
    def buffer(self) -> int:
        """Bytes of all rows of a device."""
        return self.count * self.slots * self.edges.size


Launch = LanePermute | LaneExchange


@dataclass(frozen=True)
class Planner:
    """Makes plans for groups of `count` members."""

    count: int
    limit: float
    "Up to as many bytes are copied into one buffer to spare a launch."
    launch: float
    "The bytes that it is worth to copy or to send to spare a launch."
    price: Callable[[Launch], float]
    joins: bool = False
    "Whether the compiler joins permutes of the same pairs by itself."

    def plan(self, permutes: Sequence[Moves]) -> tuple[Launch, ...]:
        """The launches of the lowest price that do what `permutes` do. The busiest device sends no more than it does in these."""
        by_size = sorted(range(len(permutes)), key=lambda number: -permutes[number].size)
        classes = [list(each) for _, each in groupby(by_size, key=lambda number: permutes[number].size)]
        planned: list[tuple[list[int], list[Launch]]] = []
        for each in classes:  # smaller ones travel with larger ones where it is worth what they are padded with
            numbers, found = each, self._best(permutes, each)
            if planned:
                larger, before = planned[-1]
                both = self._best(permutes, larger + each)
                if self._price(both) < self._price([*before, *found]):
                    planned.pop()
                    numbers, found = larger + each, both
            planned.append((numbers, found))
        return tuple(_joined([launch for _, found in planned for launch in found], self.limit))

    def _best(self, permutes: Sequence[Moves], numbers: list[int]) -> list[Launch]:
        """The launches of the lowest price for the permutes of these numbers."""
        apart = _joined([LanePermute((_edges(permutes, [number]),)) for number in numbers], self.limit)
        if len(numbers) == 1:
            return apart
        edges = _edges(permutes, sorted(numbers))
        slot = _occurrences(edges, self.count)
        lanes = _joined([LanePermute((lane,)) for lane in _lanes(edges, slot, permutes)], self.limit)
        exchange = LaneExchange(edges, slot, int(slot.max()) + 1, self.count)
        ways = [apart, lanes]
        if exchange.buffer <= max(self.limit, self.launch * (min(map(len, ways)) - 1)):
            ways.append([exchange])
        most = sum(launch.longest for launch in apart)
        return min((way for way in ways if sum(launch.longest for launch in way) <= most), key=self._price)

    def _price(self, launches: Sequence[Launch]) -> tuple[float, int]:
        """What they cost together; of equal prices, the fewest launches."""
        started = _joined(launches, np.inf) if self.joins else launches
        return sum(map(self.price, started)), len(started)


def _joined(launches: Iterable[Launch], limit: float) -> list[Launch]:
    """The same, of which permutes of the same pairs are one, of up to `limit` bytes."""
    found: list[Launch] = []
    last: dict[bytes, tuple[int, LanePermute]] = {}
    for launch in launches:
        if not isinstance(launch, LanePermute):
            found.append(launch)
            continue
        pairs = _pairs(launch.lanes[0])
        at, before = last.get(pairs, (len(found), None))
        if before is not None and before.longest + launch.longest <= limit:
            launch = found[at] = LanePermute((*before.lanes, *launch.lanes))
        else:
            at = len(found)
            found.append(launch)
        last[pairs] = at, launch
    return found


def _edges(permutes: Sequence[Moves], numbers: list[int]) -> Edges:
    """The edges of the permutes of these numbers, in that order."""
    chosen = [permutes[number] for number in numbers]
    return Edges(
        np.repeat(numbers, [len(each.senders) for each in chosen]),
        np.concatenate([each.senders for each in chosen]),
        np.concatenate([each.receivers for each in chosen]),
        max(each.size for each in chosen),
    )


def _occurrences(edges: Edges, count: int) -> Numbers:
    """Of each edge, how many of those before it have the same ends."""
    seen: dict[int, int] = {}
    found = np.zeros(len(edges.senders), np.int64)
    for at, pair in enumerate((edges.senders * count + edges.receivers).tolist()):
        found[at] = seen[pair] = seen.get(pair, -1) + 1
    return found


def _lanes(edges: Edges, occurrence: Numbers, permutes: Sequence[Moves]) -> list[Edges]:
    """The fewest lanes of the edges that are there for the first time, of those that are there for the second, and so on: what
    several permutes have in common then travels between the same pairs, and can be joined."""
    found = []
    for time in range(int(occurrence.max()) + 1):
        layer = edges.where(occurrence == time)
        colours = colour_edges(layer.senders, layer.receivers)
        for colour in range(int(colours.max()) + 1):
            lane = layer.where(colours == colour)
            size = max(permutes[number].size for number in {*lane.permutes.tolist()})
            found.append(Edges(lane.permutes, lane.senders, lane.receivers, size))
    return found


def _pairs(edges: Edges) -> bytes:
    """The pairs of devices, in one order."""
    order = np.argsort(edges.senders)
    return np.stack([edges.senders[order], edges.receivers[order]]).tobytes()
