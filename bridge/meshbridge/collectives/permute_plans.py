"""Plans the launches for several independent permutes: permutes with more senders, or one all-to-all.

A permute of a group is a set of *edges*, each from a sender to a receiver, that carry one operand. A *lane* is a set of edges, of
any permutes, of which no two share a sender or a receiver: one permute can send it.

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
class PermutePairs:
    """A permute in a group: member `senders[k]` sends its operand to `receivers[k]`, another member."""

    senders: Numbers
    receivers: Numbers
    size: int
    "Bytes of the operand."


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of several permutes: for each, the number of its permute, its sender and its receiver. Each sends `size` bytes, the
    maximum over the edges."""

    permutes: Numbers
    senders: Numbers
    receivers: Numbers
    size: int

    def where(self, chosen: Numbers) -> Edges:
        """The edges selected by a mask or by numbers."""
        return Edges(self.permutes[chosen], self.senders[chosen], self.receivers[chosen], self.size)


@dataclass(frozen=True, eq=False)
class LanePermute:
    """One permute for lanes with the same pairs of devices, whose buffers are concatenated."""

    lanes: tuple[Edges, ...]

    def total_bytes(self, count: int) -> int:
        """Bytes that all members of a group of `count` send to others."""
        return self.busiest_bytes * len(self.lanes[0].senders)

    @property
    def busiest_bytes(self) -> int:
        """Bytes that the busiest member sends."""
        return sum(lane.size for lane in self.lanes)


@dataclass(frozen=True, eq=False)
class LaneExchange:
    """One all-to-all for the edges. Each member has `slots` rows for each other, of `edges.size` bytes."""

    edges: Edges
    slot: Numbers
    "Per edge, the row among those for its receiver."
    slots: int
    count: int

    def total_bytes(self, count: int) -> int:
        """See `LanePermute`."""
        return self.busiest_bytes * count

    @property
    def busiest_bytes(self) -> int:
        """See `LanePermute`."""
        return (self.count - 1) * self.slots * self.edges.size

    @property
    def buffer(self) -> int:
        """Bytes of all rows of a device."""
        return self.count * self.slots * self.edges.size


Launch = LanePermute | LaneExchange


@dataclass(frozen=True)
class Planner:
    """Plans launches for groups of `count` members."""

    count: int
    limit: float
    "The largest buffer that is copied to save a launch."
    launch: float
    "The bytes that it is worth to copy or to send to save a launch."
    price: Callable[[Launch], float]
    compiler_combines: bool = False
    "True if the compiler combines permutes of the same pairs itself."

    def plan(self, permutes: Sequence[PermutePairs]) -> tuple[Launch, ...]:
        """The cheapest launches for `permutes`. The busiest device sends no more than in `permutes`."""
        by_size = sorted(range(len(permutes)), key=lambda number: -permutes[number].size)
        classes = [list(same_size) for _, same_size in groupby(by_size, key=lambda number: permutes[number].size)]
        planned: list[tuple[list[int], list[Launch]]] = []
        for same_size in classes:  # small permutes are combined with larger ones if that is worth the padding
            numbers, launches = same_size, self._best(permutes, same_size)
            if planned:
                larger, larger_launches = planned[-1]
                combined = self._best(permutes, larger + same_size)
                if self._price(combined) < self._price([*larger_launches, *launches]):
                    planned.pop()
                    numbers, launches = larger + same_size, combined
            planned.append((numbers, launches))
        return tuple(_joined([launch for _, launches in planned for launch in launches], self.limit))

    def _best(self, permutes: Sequence[PermutePairs], numbers: list[int]) -> list[Launch]:
        """The cheapest launches for the permutes of these numbers."""
        apart = _joined([LanePermute((_edges(permutes, [number]),)) for number in numbers], self.limit)
        if len(numbers) == 1:
            return apart
        edges = _edges(permutes, sorted(numbers))
        slot = _occurrences(edges, self.count)
        lanes = _joined([LanePermute((lane,)) for lane in _lanes(edges, slot, permutes)], self.limit)
        exchange = LaneExchange(edges, slot, int(slot.max()) + 1, self.count)
        plans = [apart, lanes]
        if exchange.buffer <= max(self.limit, self.launch * (min(map(len, plans)) - 1)):
            plans.append([exchange])
        most = sum(launch.busiest_bytes for launch in apart)
        return min((plan for plan in plans if sum(launch.busiest_bytes for launch in plan) <= most), key=self._price)

    def _price(self, launches: Sequence[Launch]) -> tuple[float, int]:
        """The total cost, then the number of launches."""
        started = _joined(launches, np.inf) if self.compiler_combines else launches
        return sum(map(self.price, started)), len(started)


def _joined(launches: Iterable[Launch], limit: float) -> list[Launch]:
    """The launches, with permutes of the same pairs combined up to `limit` bytes."""
    combined: list[Launch] = []
    latest: dict[bytes, tuple[int, LanePermute]] = {}
    for launch in launches:
        if not isinstance(launch, LanePermute):
            combined.append(launch)
            continue
        pairs = _pairs(launch.lanes[0])
        index, earlier = latest.get(pairs, (len(combined), None))
        if earlier is not None and earlier.busiest_bytes + launch.busiest_bytes <= limit:
            launch = combined[index] = LanePermute((*earlier.lanes, *launch.lanes))
        else:
            index = len(combined)
            combined.append(launch)
        latest[pairs] = index, launch
    return combined


def _edges(permutes: Sequence[PermutePairs], numbers: list[int]) -> Edges:
    """The edges of the permutes of these numbers, in that order."""
    chosen = [permutes[number] for number in numbers]
    return Edges(
        np.repeat(numbers, [len(permute.senders) for permute in chosen]),
        np.concatenate([permute.senders for permute in chosen]),
        np.concatenate([permute.receivers for permute in chosen]),
        max(permute.size for permute in chosen),
    )


def _occurrences(edges: Edges, count: int) -> Numbers:
    """Per edge, the number of earlier edges with the same sender and receiver."""
    counts: dict[int, int] = {}
    occurrences = np.zeros(len(edges.senders), np.int64)
    for at, pair in enumerate((edges.senders * count + edges.receivers).tolist()):
        occurrences[at] = counts[pair] = counts.get(pair, -1) + 1
    return occurrences


def _lanes(edges: Edges, occurrence: Numbers, permutes: Sequence[PermutePairs]) -> list[Edges]:
    """The fewest lanes for the first occurrences of edges, then for the second ones, and so on: lanes of common pairs can then be
    combined."""
    lanes = []
    for time in range(int(occurrence.max()) + 1):
        layer = edges.where(occurrence == time)
        colours = colour_edges(layer.senders, layer.receivers)
        for colour in range(int(colours.max()) + 1):
            lane = layer.where(colours == colour)
            size = max(permutes[number].size for number in {*lane.permutes.tolist()})
            lanes.append(Edges(lane.permutes, lane.senders, lane.receivers, size))
    return lanes


def _pairs(edges: Edges) -> bytes:
    """The pairs of devices in canonical order."""
    order = np.argsort(edges.senders)
    return np.stack([edges.senders[order], edges.receivers[order]]).tobytes()
