"""Estimates, before shardings are decided, which collectives the compiler can combine or overlap.

    %0 = convert %w                              gathers of parameters depend on nothing: %w and %0 are *early*
    %1 = dot_general %x, %0
    %2 = reduce %1, %3 = reduce %1 * %1          independent of each other: they may be reduced together
    %4 = dot_general %x, %cotangent
    %5 = subtract %w, %4                         no product depends on gradients: %4 and %5 are *late*

Early tensors are gathered, and late ones reduced, while products run. Early tensors of one scope may be gathered together. Late
ones may be reduced together, and tensors computed from them gathered together. Of the tensors in between, results of reductions
at the same depth of dependent reductions may be reduced together.

Only small programs are analysed for combining: in larger ones the launches of collectives cost next to nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache

from meshbridge.decide.dimension_classes import MOVING
from meshbridge.decide.graph import Graph, Node
from meshbridge.resharding import ALONE, Concurrency, Objective

Scope = tuple[int, ...]

Level = tuple[Scope, int, bool]
"""A scope, the number of dependent reductions up to there, and whether the last one is a product."""


def note_concurrency(graph: Graph, objective: Objective, *, is_small: bool) -> None:
    """Sets the concurrency of each tensor's gather and reduction, in place."""
    early, late = _early(graph, MOVING), _late(graph)
    combined = _combined(graph, _early(graph), late) if is_small and objective.combined_bytes else {}
    concurrency = cache(Concurrency)
    for index, (is_early, is_late) in enumerate(zip(early, late, strict=True)):
        gathers, reductions = combined.get(index, (1, 1))
        gathered = concurrency(gathers, objective.hidden_gathers if is_early else 1.0)
        reduced = concurrency(reductions, objective.hidden_reductions if is_late else 1.0)
        if (gathered, reduced) != (ALONE, ALONE):
            graph.describe(index, gathered=gathered, reduced=reduced)


def _combined(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> dict[int, tuple[int, int]]:
    """Per tensor, with how many it may be gathered and reduced, itself included. Sums that loops accumulate are left out."""
    read, computed, levels = _read(graph, early, late), _computed(graph, early, late), _levels(graph)
    at_level = Counter(levels.values())
    sizes = {}
    for index, users in enumerate(graph.users):
        if users and index not in graph.accumulated:
            scope = graph.nodes[users[0]].scope
            gathered = max(early[index] and read[scope], late[index] and computed[scope], 1)
            reduced = max(computed[scope], 1) if late[index] else at_level[levels[index]] if index in levels else 1
            sizes[index] = (gathered, reduced)
    return sizes


def _early(graph: Graph, through: Container[str] = ()) -> list[bool]:
    """Per tensor, whether it is computed from arguments without a reduction; for a value that a loop carries, in every iteration.
    Ops in `through` may reduce along a split dimension, like the slice of stacked parameters that an iteration reads.

    Measured: if such slices count as launched together, flows of FlowJAX, whose iterations gather little, have 14 launches
    instead of 8 and are predicted 2 to 7 % slower; an nnx encoder has 12 instead of 6 and is predicted 6 to 10 % faster."""
    return _unreached(
        graph,
        lambda node: node.rule.reduces and node.name not in through,
        before=lambda node: node.operands,
        after=lambda node: node.results,
    )


def _late(graph: Graph) -> list[bool]:
    """Per tensor, whether no product is computed from it."""
    return _unreached(
        graph, lambda node: node.rule.is_contraction, before=lambda node: node.results, after=lambda node: node.operands
    )


Tensors = Callable[[Node], tuple[int, ...]]


def _unreached(graph: Graph, ends: Callable[[Node], bool], *, before: Tensors, after: Tensors) -> list[bool]:
    """Per tensor, whether no path from `before` a node to `after` it leads to the tensor through a node that `ends` it."""
    unreached = [True] * len(graph.tensors)
    worklist = list(filter(ends, graph.nodes))
    while worklist:
        for tensor in after(worklist.pop()):
            if tensor >= 0 and unreached[tensor]:
                unreached[tensor] = False
                worklist += [graph.nodes[user] for user in graph.users[tensor] if tensor in before(graph.nodes[user])]
    return unreached


def _levels(graph: Graph) -> dict[int, Level]:
    """Per result of a reduction, its level. A value that a loop carries has the level of its initial value."""
    depths = [0] * len(graph.tensors)
    levels: dict[int, Level] = {}
    for node in graph.nodes:
        reduces = node.rule.reduces
        depth = reduces + max([depths[tensor] for tensor in node.operands if tensor >= 0], default=0)
        for tensor in node.results:
            if tensor >= 0:
                depths[tensor] = max(depths[tensor], depth)
                if reduces:
                    levels[tensor] = (node.scope, depth, node.rule.is_contraction)
    return levels


def _read(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> Counter[Scope]:
    """Per scope, the number of sharded early tensors from which tensors are computed that are neither early nor late."""
    readers = {
        (tensor, node.scope)
        for node in graph.nodes
        if not _are(early, node.results) and not _are(late, node.results)
        for tensor in node.operands
        if tensor >= 0 and early[tensor] and graph.tensors[tensor].axes
    }
    return Counter(scope for _, scope in readers)


def _computed(graph: Graph, early: Sequence[bool], late: Sequence[bool]) -> Counter[Scope]:
    """Per scope, the number of ops that compute late tensors from tensors that are neither early nor late."""
    return Counter(
        node.scope
        for node in graph.nodes
        if _are(late, node.results) and any(tensor >= 0 and not early[tensor] and not late[tensor] for tensor in node.operands)
    )


def _are(property_of: Sequence[bool], tensors: Iterable[int]) -> bool:
    return all(tensor < 0 or property_of[tensor] for tensor in tensors)
