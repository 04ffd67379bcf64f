"""Where to cut a small directed graph in two, so that what crosses the cut weighs least."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import inf

SOURCE = "source"
SINK = "sink"

UNCUT = inf
"""The weight of an edge that is never cut: where it comes from stays with the source only together with where it leads."""

Node = Hashable


class FlowNetwork:
    """Nodes between `SOURCE` and `SINK`, and edges with weights, those that leave the source finite ones."""

    def __init__(self) -> None:
        self._spare: dict[Node, dict[Node, float]] = {SOURCE: {}, SINK: {}}
        "How much more may flow along each edge; what flows along one may flow back."

    def add(self, tail: Node, head: Node, weight: float) -> None:
        """Adds an edge; of two from one node to another the weights add up."""
        for node, other, more in ((tail, head, weight), (head, tail, 0)):
            edges = self._spare.setdefault(node, {})
            edges[other] = edges.get(other, 0) + more

    def source_side(self) -> set[Node]:
        """The nodes that stay with the source so that the edges that leave them weigh least; of several such sets the largest.

        By Ford and Fulkerson, along shortest paths: each one that is found fills an edge.
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
        """The nodes from which more may flow to the sink, each with the next one on a shortest path."""
        towards: dict[Node, Node] = {SINK: SINK}
        waiting = deque[Node]([SINK])
        while waiting:
            head = waiting.popleft()
            for tail in self._spare[head]:
                if tail not in towards and self._spare[tail][head] > 0:
                    towards[tail] = head
                    waiting.append(tail)
        return towards
