"""Tensors that loops carry unchanged, such as the stacked weights of layers: what they are outside, and how often it is read."""

from __future__ import annotations

from collections.abc import Mapping

from meshbridge.decide.graph import Graph, LoopInvariant, Node
from meshbridge.ops.traits import Trait, has


def loop_invariants(graph: Graph, initial: Mapping[int, int]) -> dict[int, LoopInvariant]:
    """What is known of the tensors that loops carry unchanged, each of which is given with the tensor that its loop starts from.
    Weights that are converted or transposed before their loop are followed to where they come from."""
    sources = {node.results[0]: node.operands[0] for node in graph.nodes if _passes_on(node)} | dict(initial)
    origins = {tensor: _origin(tensor, sources) for tensor in initial}
    executions: dict[int, int] = {}
    for node in graph.nodes:
        if node.is_identity and initial.get(node.results[0]) == node.operands[0]:
            origin = origins[node.results[0]]
            executions[origin] = max(executions.get(origin, 1), node.kind.weight)
    return {tensor: LoopInvariant(origin, executions[origin]) for tensor, origin in origins.items()}


def _origin(tensor: int, sources: Mapping[int, int]) -> int:
    visited = {tensor}
    while (source := sources.get(tensor, tensor)) not in visited:
        visited.add(tensor := source)
    return tensor


def _passes_on(node: Node) -> bool:
    """Whether a node has one operand and one result, and hands on what it reads."""
    is_single = len(node.operands) == 1 and len(node.results) == 1
    return is_single and (node.is_identity or has(node.name, Trait.ELEMENTWISE) or has(node.name, Trait.SHAPING))
