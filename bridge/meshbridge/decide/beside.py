"""What goes on while a tensor is gathered or reduced, found before shardings are decided: how many more the compiler gathers or
reduces in the same launch, and whether products run meanwhile.

    %0 = convert %w                              gathers of parameters wait for nothing: %w and %0 are *early*
    %1 = dot_general %x, %0
    %2 = reduce %1, %3 = reduce %1 * %1          neither waits for the other: they may be reduced together
    %4 = dot_general %x, %cotangent
    %5 = subtract %w, %4                         no product waits for gradients: %4 and %5 are *late*

Early tensors are gathered, and late ones reduced, while products run. Early tensors of one scope may be gathered together. Late
ones may be reduced together, and what is computed from them gathered together. Of what lies between, results of reductions may be
reduced together before which as many others come, one after the other.

Only small programs are asked what may be launched together: in others the starts of collectives take next to nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

from meshbridge.decide.dimension_classes import MOVING
from meshbridge.decide.graph import Graph, Node
from meshbridge.resharding import ALONE, Concurrency, Objective

Scope = tuple[int, ...]

Level = tuple[Scope, int, bool]
"""A scope, how many reductions come one after the other up to there, and whether the last one is a product."""


def note_beside(graph: Graph, objective: Objective, *, is_small: bool) -> None:
    """Notes of every tensor, in place, what goes on while it is gathered, and while it is reduced."""
    early, late = _early(graph, MOVING), _late(graph)
    joined = _joined(graph, _early(graph), late) if is_small and objective.combined_bytes else {}
    for index in range(len(graph.tensors)):
        gathers, reductions = joined.get(index, (1, 1))
        gathered = Concurrency(gathers, objective.hidden_gathers if early[index] else 1.0)
        reduced = Concurrency(reductions, objective.hidden_reductions if late[index] else 1.0)
        if (gathered, reduced) != (ALONE, ALONE):
            graph.describe(index, gathered=gathered, reduced=reduced)


def _joined(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> dict[int, tuple[int, int]]:
    """Per tensor, with how many it may be gathered and reduced, itself included. What a loop adds up is reduced behind it."""
    read, made, levels = _read(graph, early, late), _made(graph, early, late), _levels(graph)
    alike = Counter(levels.values())
    found = {}
    for index, users in enumerate(graph.users):
        if users and index not in graph.accumulated:
            scope = graph.nodes[users[0]].scope
            gathered = max(early[index] and read[scope], late[index] and made[scope], 1)
            reduced = max(made[scope], 1) if late[index] else alike[levels[index]] if index in levels else 1
            found[index] = (gathered, reduced)
    return found


def _early(graph: Graph, through: Container[str] = ()) -> list[bool]:
    """Per tensor, whether it is computed from arguments without a reduction; what a loop carries, if it is in every trip. Ops
    that it comes `through` may reduce along a split dimension, as the slice of stacked parameters does that a trip reads.

    Measured: where such slices count as launched together, flows of FlowJAX, whose trips gather few, have 14 launches instead
    of 8 and are predicted 2 to 7 % longer; an encoder of nnx has 12 instead of 6, and is predicted 6 to 10 % shorter."""
    return _all_but(
        graph,
        lambda node: node.rule.reduces and node.name not in through,
        before=lambda node: node.operands,
        behind=lambda node: node.results,
    )


def _late(graph: Graph) -> list[bool]:
    """Per tensor, whether no product is computed from it."""
    return _all_but(
        graph, lambda node: node.rule.is_contraction, before=lambda node: node.results, behind=lambda node: node.operands
    )


Tensors = Callable[[Node], tuple[int, ...]]


def _all_but(graph: Graph, ends: Callable[[Node], bool], *, before: Tensors, behind: Tensors) -> list[bool]:
    """Per tensor, whether no way leads to it through a node that `ends` it, from what is `before` a node to what is `behind`."""
    found = [True] * len(graph.tensors)
    waiting = list(graph.nodes)
    while waiting:
        node = waiting.pop()
        if ends(node) or not _are(found, before(node)):
            for tensor in behind(node):
                if tensor >= 0 and found[tensor]:
                    found[tensor] = False
                    waiting += [graph.nodes[user] for user in graph.users[tensor] if tensor in before(graph.nodes[user])]
    return found


def _levels(graph: Graph) -> dict[int, Level]:
    """Where the results of reductions are. What a loop carries counts as what it starts with."""
    depths = [0] * len(graph.tensors)
    found: dict[int, Level] = {}
    for node in graph.nodes:
        reduces = node.rule.reduces
        depth = reduces + max([depths[tensor] for tensor in node.operands if tensor >= 0], default=0)
        for tensor in node.results:
            if tensor >= 0:
                depths[tensor] = max(depths[tensor], depth)
                if reduces:
                    found[tensor] = (node.scope, depth, node.rule.is_contraction)
    return found


def _read(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> Counter[Scope]:
    """Per scope, how many sharded early tensors there are from which something is computed that is neither early nor late."""
    found = {
        (tensor, node.scope)
        for node in graph.nodes
        if not _are(early, node.results) and not _are(late, node.results)
        for tensor in node.operands
        if tensor >= 0 and early[tensor] and graph.tensors[tensor].axes
    }
    return Counter(scope for _, scope in found)


def _made(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> Counter[Scope]:
    """Per scope, how many ops compute late tensors from something that is neither early nor late."""
    return Counter(
        node.scope
        for node in graph.nodes
        if _are(late, node.results) and any(tensor >= 0 and not early[tensor] and not late[tensor] for tensor in node.operands)
    )


def _are(known: Sequence[bool], tensors: Iterable[int]) -> bool:
    return all(tensor < 0 or known[tensor] for tensor in tensors)
