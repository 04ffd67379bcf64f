"""The graph of a model with its repetitions folded: the layers of a transformer become one layer that counts twelve times.

Tensors and nodes that look alike, and whose neighbours look alike, are one (colour refinement, stopped after ROUNDS rounds so
that being the first layer or the last does not set a layer apart). What is decided on the folded graph is decided for all.
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
"""Neighbourhoods compared: one op's, and that of the ops beside it. More rounds tell more layers apart.

Measured (`benchmarks.constants`): from 1 to 3, all programs send as many bytes within 0.3 %, and llama_scan_fsdp executes 211
collectives with 1 and 2, 219 with 3."""


def fold_layers(graph: Graph) -> tuple[Graph, list[int]]:
    """The folded graph, and for every tensor of `graph` the tensor that it is folded into. A node's weight counts the nodes
    folded into it."""
    tensors, nodes = _colours(graph)
    folded = replace(graph, tensors=[], nodes=[], uses=[], carried={})
    for index in _representatives(tensors):
        folded.add(graph.tensors[index])
    numbers = [*tensors, -1]  # the last one is tensor -1's
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
    """The first member of every colour; colours are numbered in that order."""
    return sorted(dict(zip(reversed(colours), reversed(range(len(colours))), strict=True)).values())


def _colours(graph: Graph) -> tuple[list[int], list[int]]:
    """A number for every tensor and every node; equal numbers look alike."""
    tensors = _number(graph.tensors)
    nodes = kinds = _number([node.kind for node in graph.nodes])
    seen = [itemgetter(len(tensors) + index, *node.operands, *node.results) for index, node in enumerate(graph.nodes)]
    for _ in range(ROUNDS):
        nodes = _with_tensors(kinds, seen, tensors)
        find = nodes.__getitem__
        tensors = _number(zip(tensors, (frozenset(map(find, users)) for users in graph.users), strict=True))
    return tensors, _with_tensors(nodes, seen, tensors)


def _with_tensors(nodes: list[int], seen: list[itemgetter[int]], tensors: list[int]) -> list[int]:
    """A number for each node's together with those of the tensors that it mentions."""
    numbers = [*tensors, *nodes, -1]  # the last one is tensor -1's
    return _number(pick(numbers) for pick in seen)


def _number(values: Iterable[Hashable]) -> list[int]:
    """Equal values get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = defaultdict(count().__next__)
    return list(map(numbers.__getitem__, values))
