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
    frozen: dict[int, bool] = {}

    def is_frozen(source: int) -> bool:
        if source not in frozen:
            frozen[source] = False  # a value that leads to itself is changed
            frozen[source] = all(
                _passes_on(node) and (result in initial or (result not in graph.carried and is_frozen(result)))
                for node in (graph.nodes[index] for index in graph.users[source])
                if source in node.operands and (result := next(iter(node.results), -1)) != source
            )
        return frozen[source]

    def origin(tensor: int) -> int:
        visited = {tensor}
        while (source := sources.get(tensor, tensor)) not in visited:
            visited.add(tensor := source)
        return tensor

    return {tensor for tensor in initial if is_frozen(origin(tensor))}


def _passes_on(node: Node) -> bool:
    """Whether a node has one operand and one result, and hands on what it reads."""
    is_single = len(node.operands) == 1 and len(node.results) == 1
    return is_single and (node.is_identity or has(node.name, Trait.ELEMENTWISE) or has(node.name, Trait.SHAPING))
