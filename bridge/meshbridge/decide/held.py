"""How long a device holds each tensor of a graph: what a byte of it counts where memory has a price."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from meshbridge.cost.fusion import NO_KERNELS
from meshbridge.decide.graph import Graph, Tensor
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.traits import Trait, has

STEEPNESS = 8
"""The power of what is held at a time that the time counts by: only what is held near the peak has to become less."""


def local_bytes(tensor: Tensor, mesh: Mesh) -> float:
    """Bytes of one device's shard, the largest one."""
    sizes = [-(-size // mesh.group_size(axes)) for size, axes in zip(tensor.shape, tensor.split, strict=True)]
    return prod(sizes) * element_bytes(tensor.dtype)


def held(graph: Graph) -> list[float]:
    """Per tensor, the part of the program during which it is held, from 0 to 1: from the first node that mentions it to the last
    one, each place weighed by what all devices hold there as the tensors are split now."""
    spans = _spans(graph)
    weights = _weights(graph, spans)
    until = [0.0, *accumulate(weights)]
    whole = until[-1] or 1.0
    return [(until[end] - until[start]) / whole for start, end in spans]


def _spans(graph: Graph) -> list[tuple[int, int]]:
    """Per tensor, the places of the nodes from the first that mentions it to behind the last one. What its only reader computes
    on the way has none, and what that is computed from is held for it."""
    starts = [users[0] if users else 0 for users in graph.users]
    ends = [users[-1] + 1 if users else 0 for users in graph.users]
    for node in reversed(graph.nodes):
        result = node.only_result
        if result >= 0 and node.name in NO_KERNELS and (not has(node.name, Trait.FUSIBLE) or graph.uses[result] == 1):
            for operand in node.operands:
                if operand >= 0:
                    ends[operand] = max(ends[operand], ends[result])
            ends[result] = starts[result]
    return list(zip(starts, ends, strict=True))


def _weights(graph: Graph, spans: Sequence[tuple[int, int]]) -> list[float]:
    """Per node, how much its place counts."""
    sizes = {tensor: local_bytes(tensor, graph.mesh) for tensor in {*graph.tensors}}
    changes = [0.0] * (len(graph.nodes) + 1)
    for tensor, (start, end) in zip(graph.tensors, spans, strict=True):
        changes[start] += sizes[tensor]
        changes[end] -= sizes[tensor]
    alive = list(accumulate(changes[:-1]))
    most = max(alive, default=0.0) or 1.0
    return [(each / most) ** STEEPNESS for each in alive]
