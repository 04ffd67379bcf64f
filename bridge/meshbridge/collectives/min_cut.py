"""Minimum cuts of small directed graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import inf

SOURCE = "source"
SINK = "sink"

UNCUT = inf
"""The weight of an edge that is never cut: if its tail is on the source side, so is its head."""

Node = Hashable


class FlowNetwork:
    """A network with edges of given weights between `SOURCE` and `SINK`; edges from the source have finite weights."""

    def __init__(self) -> None:
        self._spare: dict[Node, dict[Node, float]] = {SOURCE: {}, SINK: {}}
        "The residual capacity of each edge; flow along an edge can flow back."

    def add(self, tail: Node, head: Node, weight: float) -> None:
        """Adds an edge; weights of parallel edges add up."""
        for node, neighbour, capacity in ((tail, head, weight), (head, tail, 0)):
            edges = self._spare.setdefault(node, {})
            edges[neighbour] = edges.get(neighbour, 0) + capacity

    def source_side(self) -> set[Node]:
        """The source side of a minimum cut; of several such sides the largest.

        Ford and Fulkerson's algorithm along shortest paths, each of which saturates an edge.
        """
        while SOURCE in (towards := self._towards_sink()):
            path: list[tuple[Node, Node]] = []
            node: Node = SOURCE
            while node != SINK:
                path.append((node, towards[node]))
                node = towards[node]
            flow = min(self._spare[tail][head] for tail, head in path)
            for tail, head in path:
                self._spare[tail][head] -= flow
                self._spare[head][tail] += flow
        return self._spare.keys() - towards.keys()

    def _towards_sink(self) -> dict[Node, Node]:
        """The nodes from which more can flow to the sink, each with the next node on a shortest path."""
        towards: dict[Node, Node] = {SINK: SINK}
        waiting = deque[Node]([SINK])
        while waiting:
            head = waiting.popleft()
            for tail in self._spare[head]:
                if tail not in towards and self._spare[tail][head] > 0:
                    towards[tail] = head
                    waiting.append(tail)
        return towards
