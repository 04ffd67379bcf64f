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


def neighbours_of(graph: Graph) -> Neighbours:
    """The neighbours in a graph, and in its copies: they depend on which tensors its nodes mention alone."""
    count = len(graph.tensors)
    return [itemgetter(count + index, *node.operands, *node.results) for index, node in enumerate(graph.nodes)]


def fold_layers(graph: Graph, neighbours: Neighbours | None = None) -> tuple[Graph, list[int]]:
    """The folded graph, whose nodes' weights count the nodes folded into them, and for every tensor its number there."""
    tensors, nodes = _colours(graph, neighbours_of(graph) if neighbours is None else neighbours)
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


def _representatives(colours: list[int]) -> list[int]:
    """The first member of every colour; colours are numbered in this order."""
    return sorted(dict(zip(reversed(colours), reversed(range(len(colours))), strict=True)).values())


def _colours(graph: Graph, neighbours: Neighbours) -> tuple[list[int], list[int]]:
    """A number for every tensor and every node; equal numbers have equal neighbourhoods."""
    tensors = _number(graph.tensors)
    nodes = kinds = _number([node.kind for node in graph.nodes])
    for _ in range(ROUNDS):
        nodes = _with_tensors(kinds, neighbours, tensors)
        find = nodes.__getitem__
        different = [frozenset(map(find, users)) for users in graph.users]
        tensors = _number(zip(tensors, different, strict=True))
    return tensors, _with_tensors(nodes, neighbours, tensors)


def _with_tensors(nodes: list[int], neighbours: Neighbours, tensors: list[int]) -> list[int]:
    """A number for each pair of a node's number and the numbers of its tensors."""
    numbers = [*tensors, *nodes, -1]  # the last one is the number of tensor -1
    return _number([pick(numbers) for pick in neighbours])


def _number(values: Iterable[Hashable]) -> list[int]:
    """Equal values get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = defaultdict(count().__next__)
    return list(map(numbers.__getitem__, values))
