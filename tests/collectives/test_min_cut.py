"""Cuts of small graphs, beside all that there are."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from meshbridge.collectives.min_cut import SINK, SOURCE, UNCUT, FlowNetwork, Node

NODES = "abcde"
WEIGHTS = st.integers(0, 9)
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([*NODES, SINK]), WEIGHTS | st.just(UNCUT)), max_size=12)
FIRST = st.lists(st.tuples(st.just(SOURCE), st.sampled_from(NODES), WEIGHTS), max_size=4)


def weight(side: frozenset[Node], edges: list[tuple[str, str, float]]) -> float:
    """Of the edges that leave a side."""
    return sum(each for tail, head, each in edges if tail in side and head not in side)


@given(edges=EDGES, first=FIRST)
def test_the_largest_of_the_lightest(edges: list[tuple[str, str, float]], first: list[tuple[str, str, float]]) -> None:
    graph, edges = FlowNetwork(), [*first, *edges]
    for edge in edges:
        graph.add(*edge)
    nodes = {node for tail, head, _ in edges for node in (tail, head)} - {SOURCE, SINK}
    sides = [
        frozenset((SOURCE, *side)) for side in chain(*(combinations(sorted(nodes), count) for count in range(len(nodes) + 1)))
    ]
    least = min(weight(side, edges) for side in sides)
    assert graph.source_side() == frozenset().union(*(side for side in sides if weight(side, edges) == least))
