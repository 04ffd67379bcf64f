"""Sub-axes that a search could have used: for experts of a mixture, or heads, that no whole axis divides."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

from meshbridge.decide.graph import Graph, Node
from meshbridge.ir.locations import user_line
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.text import time_text


class SubAxis(NamedTuple):
    """A sub-axis that divides a batch dimension of a product which the whole axis does not divide."""

    axis: str
    devices: int
    "The devices along the whole axis."
    part: int
    "The devices along the sub-axis."
    size: int
    "The size of the dimension."
    location: ir.Location
    "The location of the product."

    @property
    def text(self) -> str:
        """What to ask for, and why."""
        return f"`--sub-axes {self._sizes}` lets {self._why}"

    def divided(self, seconds: float) -> str:
        """What the search did without being asked, and why; along whole axes a step takes so many `seconds`."""
        step = f"along whole axes a step takes {time_text(seconds)}"
        return f"axis '{self.axis}' is in parts, {self._sizes}, which lets {self._why}; {step}, and `--whole-axes` keeps to these"

    @property
    def _sizes(self) -> str:
        return f"{self.axis}={self.devices // self.part}x{self.part}"

    @property
    def _why(self) -> str:
        where = user_line(self.location).short
        return f"{self.part} devices share the {self.size} products of {where}, which {self.devices} do not divide"


def sub_axis_hint(graph: Graph, mesh: Mesh) -> SubAxis | None:
    """The sub-axis of most use to the products of a program, weighted by their FLOPs: a product has a batch dimension that no
    axis divides, and a sub-axis does. None if there is no such product."""
    weighted = [(node.kind.weight * graph.pricing.computed(node.rule), part) for node, part in _parts(graph, mesh)]
    return max(weighted, key=lambda pair: pair[0])[1] if weighted else None


def _parts(graph: Graph, mesh: Mesh) -> Iterable[tuple[Node, SubAxis]]:
    axes = [(name, size) for name, size in mesh.named_axes if size > 1]
    for node in graph.nodes:
        if not node.rule.is_contraction or node.is_identity:
            continue
        for loop in node.kind.batch:
            count = node.rule.loops[loop].size
            if any(count % size == 0 for _, size in axes):
                continue
            parts = [
                SubAxis(name, size, gcd(size, count), count, node.op.location) for name, size in axes if gcd(size, count) > 1
            ]
            if parts:
                yield node, max(parts, key=lambda part: part.part)
