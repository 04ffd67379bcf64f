"""Tensors that loops carry unchanged and nothing else reads: the stacked weights of frozen layers. Trained weights are read by
their update, too."""

from __future__ import annotations

from collections.abc import Mapping

from meshbridge.decide.graph import Graph, Node
from meshbridge.ops.traits import Trait, has


def frozen_tensors(graph: Graph, initial: Mapping[int, int]) -> set[int]:
    """Of the tensors that loops carry unchanged, each with the tensor that the loop starts from, those that are frozen. Weights
    that are converted or transposed before their loop are followed to where they come from."""
    sources = {node.results[0]: node.operands[0] for node in graph.nodes if _passes_on(node)} | dict(initial)
    origins = {tensor: _origin(tensor, sources) for tensor in initial}
    frozen = {origin for origin in set(origins.values()) if _is_read_by_loops_alone(graph, origin, initial)}
    return {tensor for tensor, origin in origins.items() if origin in frozen}


def _origin(tensor: int, sources: Mapping[int, int]) -> int:
    visited = {tensor}
    while (source := sources.get(tensor, tensor)) not in visited:
        visited.add(tensor := source)
    return tensor


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
