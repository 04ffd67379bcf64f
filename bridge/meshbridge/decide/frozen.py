"""Tensors that loops carry unchanged, and that only such loops read meanwhile: the stacked weights of frozen layers, and those of
trained layers while an outer loop adds up the gradients of microbatches, after which their update reads them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from meshbridge.decide.graph import Graph, Node
from meshbridge.ops.traits import Trait, has


def frozen_tensors(graph: Graph, initial: Mapping[int, int]) -> dict[int, int]:
    """Of the tensors that loops carry unchanged, each with the tensor that the loop starts from, those that are frozen, with the
    number of executions of the innermost loops that read them. Weights that are converted or transposed before their loop are
    followed to where they come from."""
    sources = {node.results[0]: node.operands[0] for node in graph.nodes if _passes_on(node)} | dict(initial)
    lineages = {tensor: _lineage(tensor, sources) for tensor in initial}
    ancestors = set(chain.from_iterable(lineages.values()))
    read_by_loops = {ancestor for ancestor in ancestors if _is_read_by_loops_alone(graph, ancestor, initial)}
    frozen = {
        tensor: shared[-1]
        for tensor, lineage in lineages.items()
        if (shared := [ancestor for ancestor in lineage if ancestor in read_by_loops])
    }
    entered = {node.results[0]: node.kind.weight for node in graph.nodes if _enters(node, initial)}
    executions: dict[int, int] = {}
    for tensor, ancestor in frozen.items():
        executions[ancestor] = max(executions.get(ancestor, 1), entered[tensor])
    return {tensor: executions[ancestor] for tensor, ancestor in frozen.items()}


def _enters(node: Node, initial: Mapping[int, int]) -> bool:
    """Whether a node passes the initial value of an unchanged tensor into its loop."""
    return node.is_identity and initial.get(node.results[0]) == node.operands[0]


def _lineage(tensor: int, sources: Mapping[int, int]) -> list[int]:
    """A tensor, and what it is passed on from, one after the other."""
    lineage = [tensor]
    while (source := sources.get(lineage[-1])) is not None and source not in lineage:
        lineage.append(source)
    return lineage


def _is_read_by_loops_alone(graph: Graph, origin: int, unchanged: Mapping[int, int]) -> bool:
    """Whether a tensor, and what it is converted to, is only read by loops that carry it unchanged."""
    worklist, visited = [origin], {origin}
    while worklist:
        source = worklist.pop()
        for node in (graph.nodes[index] for index in graph.users[source]):
            if source not in node.operands or source in node.results:
                continue
            if not _passes_on(node):
                return False
            (result,) = node.results
            if result in unchanged:
                continue
            if result in graph.carried:
                return False
            if result not in visited:
                visited.add(result)
                worklist.append(result)
    return True


def _passes_on(node: Node) -> bool:
    """Whether a node has one operand and one result, and hands on what it reads."""
    is_single = len(node.operands) == 1 and len(node.results) == 1
    return is_single and (node.is_identity or has(node.name, Trait.ELEMENTWISE) or has(node.name, Trait.SHAPING))
