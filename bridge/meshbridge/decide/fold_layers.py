"""Folds repeated layers of a graph: the layers of a transformer become one layer that counts twelve times.

Tensors and nodes are folded together if they and their neighbours are equal (colour refinement, stopped after ROUNDS rounds so
that the first and the last layer are not distinguished). Decisions on the folded graph hold for all layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cache
from itertools import count
from operator import itemgetter

from meshbridge.decide.graph import Graph

ROUNDS = 2
"""The radius of compared neighbourhoods: an op's, and those of the adjacent ops. More rounds distinguish more layers.

Measured (`benchmarks.constants`): from 1 to 3, all programs send the same bytes within 0.3 %, and llama_scan_fsdp executes 211
collectives with 1 and 2, 219 with 3."""


Neighbours = list["itemgetter[int]"]
"""Per node, what picks the numbers of the node and of its tensors from those of all tensors and, after them, of all nodes."""


Numbers = tuple[int, ...]
"""Of tensors or nodes; equal ones have equal numbers."""


class LayerColours:
    """Which tensors, and which nodes, of a graph and its copies are folded together: those differ in descriptions alone, and are
    often refined so that equal tensors stay equal."""

    def __init__(self) -> None:
        self._neighbours: Neighbours | None = None
        self._known: dict[tuple[Numbers, Numbers], tuple[Numbers, Numbers]] = {}
        "By which descriptions of tensors and kinds of nodes are equal."

    def of(self, graph: Graph) -> tuple[Numbers, Numbers]:
        """The numbers of the tensors and nodes; equal ones have equal neighbourhoods."""
        alike = _number(graph.tensors), _number([node.kind for node in graph.nodes])
        if alike not in self._known:
            if self._neighbours is None:
                self._neighbours = _neighbours_of(graph)
            self._known[alike] = _colours(graph, self._neighbours, *alike)
        return self._known[alike]


def _neighbours_of(graph: Graph) -> Neighbours:
    count = len(graph.tensors)
    return [itemgetter(count + index, *node.operands, *node.results) for index, node in enumerate(graph.nodes)]


def fold_layers(graph: Graph, colours: LayerColours | None = None) -> tuple[Graph, Numbers]:
    """The folded graph, whose nodes' weights count the nodes folded into them, and for every tensor its number there. `colours`
    has, and gets, those of copies of the graph."""
    tensors, nodes = (LayerColours() if colours is None else colours).of(graph)
    folded = replace(graph, tensors=[], nodes=[], uses=[], carried={})
    for index in _representatives(tensors):
        folded.add(graph.tensors[index])
    numbers = [*tensors, -1]  # the last one is the number of tensor -1
    counts = Counter(nodes)
    weighted = cache(
        lambda kind, times: folded.changed_kind(kind, weight=kind.weight * times, reduce_weight=kind.reduce_weight * times)
    )
    for colour, index in enumerate(_representatives(nodes)):
        node = graph.nodes[index]
        operands, results = (tuple([numbers[tensor] for tensor in members]) for members in (node.operands, node.results))
        kind = weighted(node.kind, counts[colour])
        folded.nodes.append(replace(node, kind=kind, operands=operands, results=results))
    folded.connect()
    return folded, tensors


def _representatives(colours: Numbers) -> list[int]:
    """The first member of every colour; colours are numbered in this order."""
    return sorted(dict(zip(reversed(colours), reversed(range(len(colours))), strict=True)).values())


def _colours(graph: Graph, neighbours: Neighbours, tensors: Numbers, kinds: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers of tensors and nodes that also tell neighbourhoods apart, from those that tell descriptions and kinds apart."""
    nodes = kinds
    for _ in range(ROUNDS):
        nodes = _with_tensors(kinds, neighbours, tensors)
        find = nodes.__getitem__
        different = [frozenset(map(find, users)) for users in graph.users]
        tensors = _number(zip(tensors, different, strict=True))
    return tensors, _with_tensors(nodes, neighbours, tensors)


def _with_tensors(nodes: Numbers, neighbours: Neighbours, tensors: Numbers) -> Numbers:
    """A number for each pair of a node's number and the numbers of its tensors."""
    numbers = [*tensors, *nodes, -1]  # the last one is the number of tensor -1
    return _number([pick(numbers) for pick in neighbours])


def _number(values: Iterable[Hashable]) -> Numbers:
    """Equal values get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = defaultdict(count().__next__)
    return tuple(map(numbers.__getitem__, values))
