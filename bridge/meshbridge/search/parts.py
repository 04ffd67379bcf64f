"""Parts of axes that a search could have used: for the experts of a mixture, or heads, that no axis divides."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

from meshbridge.decide.graph import Graph, Node
from meshbridge.ir.locations import user_line
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.text import time_text


class AxisPart(NamedTuple):
    """A part of an axis that divides a dimension of a product's operands and result which the axis does not divide."""

    axis: str
    devices: int
    "Along the whole axis."
    part: int
    "Along the part."
    size: int
    "Of the dimension."
    location: ir.Location
    "Of the product."

    @property
    def text(self) -> str:
        """What to ask for, and why."""
        return f"`--sub-axes {self._sizes}` lets {self._why}"

    def divided(self, seconds: float) -> str:
        """What was done without being asked for, and why; along whole axes a step takes so many `seconds`."""
        step = f"along whole axes a step takes {time_text(seconds)}"
        return f"axis '{self.axis}' is in parts, {self._sizes}, which lets {self._why}; {step}, and `--whole-axes` keeps to these"

    @property
    def _sizes(self) -> str:
        return f"{self.axis}={self.devices // self.part}x{self.part}"

    @property
    def _why(self) -> str:
        where = user_line(self.location).short
        return f"{self.part} devices share the {self.size} products of {where}, which {self.devices} do not divide"


def unused_part(graph: Graph, mesh: Mesh) -> AxisPart | None:
    """The part of an axis of most use to the products of a program, by what these compute: where they are as many side by side
    as no axis divides, and a part does. None where there is no such product."""
    found = [(node.kind.weight * graph.pricing.computed(node.rule), part) for node, part in _parts(graph, mesh)]
    return max(found, key=lambda each: each[0])[1] if found else None


def _parts(graph: Graph, mesh: Mesh) -> Iterable[tuple[Node, AxisPart]]:
    axes = [(name, size) for name, size in mesh.named_axes if size > 1]
    for node in graph.nodes:
        if not node.rule.is_contraction or node.is_identity:
            continue
        for loop in node.kind.batch:
            count = node.rule.loops[loop].size
            if any(count % size == 0 for _, size in axes):
                continue
            parts = [
                AxisPart(name, size, gcd(size, count), count, node.op.location) for name, size in axes if gcd(size, count) > 1
            ]
            if parts:
                yield node, max(parts, key=lambda part: part.part)
