"""The lifetime of each tensor of a graph, which weighs its bytes if memory has a price."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from meshbridge.cost.fusion import NO_KERNELS
from meshbridge.decide.graph import Graph, Tensor
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.traits import Trait, has

STEEPNESS = 8
"""The exponent of the bytes alive at a place in the weight of that place: only memory near the peak has to shrink."""


class MemoryPrice(NamedTuple):
    """What it costs to hold a tensor."""

    byte: float
    "The cost of a byte."
    stored: float = 0.0
    "Bytes without a price: a loop that carries a value as it is stored holds no copy."

    def of(self, size: float) -> float:
        """The cost of a tensor of that many bytes."""
        return self.byte * max(size - self.stored, 0.0)


FREE = MemoryPrice(0.0)


def local_bytes(tensor: Tensor, mesh: Mesh) -> float:
    """Bytes of the largest shard of a device."""
    sizes = [-(-size // mesh.group_size(axes)) for size, axes in zip(tensor.shape, tensor.split, strict=True)]
    return prod(sizes) * element_bytes(tensor.dtype)


def lifetimes(graph: Graph) -> list[float]:
    """Per tensor, the part of the program during which it is alive, from 0 to 1: from the first node that mentions it to the
    last. Each node is weighed by the bytes of all tensors alive there, as they are split now."""
    spans = _spans(graph)
    starts = [0.0, *accumulate(_weights(graph, spans))]
    total = starts[-1] or 1.0
    return [(starts[end] - starts[start]) / total for start, end in spans]


def _spans(graph: Graph) -> list[tuple[int, int]]:
    """Per tensor, the node numbers from the first that mentions it to after the last. A value that is fused into its only reader
    has an empty span, and its operands live as long as the reader's result."""
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
    """The weight of each node."""
    sizes = {tensor: local_bytes(tensor, graph.mesh) for tensor in {*graph.tensors}}
    changes = [0.0] * (len(graph.nodes) + 1)
    for tensor, (start, end) in zip(graph.tensors, spans, strict=True):
        changes[start] += sizes[tensor]
        changes[end] -= sizes[tensor]
    alive = list(accumulate(changes[:-1]))
    peak = max(alive, default=0.0) or 1.0
    return [(size / peak) ** STEEPNESS for size in alive]
