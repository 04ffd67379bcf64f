"""Writes wire bytes as node data for Model Explorer, which shows them at the operations of a program's graph.

    {"main": {"name": "wire bytes per device and step", "results": {"4": {"value": 98304.0}}, "gradient": […]}}

The graphs are those of the program before it is partitioned: one for each function, whose operations Model Explorer numbers in
the order of the text. The bytes of a collective count for the operation that caused it. The location identifies the operation:
JAX's name stack, and the line of the user's source. If several operations have the same location, the last outermost one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from meshbridge.analysis.origins import Origin
from meshbridge.cost.communication import Collective
from meshbridge.ir.locations import SourceLocation, trail_at
from meshbridge.ir.mlir import ir
from meshbridge.text import size_text


@dataclass(frozen=True)
class ExplorerNode:
    """An operation of a program's graph."""

    graph: str
    "The name of its function."
    id: str
    "Model Explorer's number."
    label: str
    "The operation's name."
    is_inside: bool
    "True if it is in a region of another operation."


@dataclass
class ExplorerGraph:
    """The operations of a program by origin, in the order of the text."""

    by_name: dict[str, list[tuple[SourceLocation, ExplorerNode]]] = field(default_factory=dict)
    'By JAX\'s name stack; "" for operations without one.'

    @classmethod
    def read(cls, module: ir.Module) -> ExplorerGraph:
        """The graph of a program before it is partitioned."""
        graph = cls()
        for op, node in nodes(module):
            trail = trail_at(op.location)
            graph.by_name.setdefault("/".join(trail.stacks), []).append((trail.user_line, node))
        return graph

    def find(self, origin: Origin) -> ExplorerNode | None:
        """The operation of an origin, or None."""
        for name in _suffixes(origin.scope):
            named = self.by_name.get(name, ())
            at_line = [node for line, node in named if line == origin.location]
            # An operation of a library has the library's line, and the origin the user's line of the call.
            if candidates := at_line or [node for line, node in named if line.is_library or not line.file]:
                return min(reversed(candidates), key=lambda node: node.is_inside)
        return None


def nodes(module: ir.Module) -> Iterator[tuple[ir.Operation, ExplorerNode]]:
    """The operations that Model Explorer draws, with their nodes. It shows regions of top-level operations, and deeper ones only
    of Shardy's operations."""
    for function in module.body.operations:
        if function.operation.name == "func.func":
            graph = ir.StringAttr(function.operation.attributes["sym_name"]).value
            body = (view.operation for block in function.operation.regions[0].blocks for view in block.operations)
            for number, (op, is_inside) in enumerate(_drawn_ops(body, is_inside=False)):
                yield op, ExplorerNode(graph, str(number), op.name, is_inside)


def _drawn_ops(ops: Iterable[ir.Operation], *, is_inside: bool) -> Iterator[tuple[ir.Operation, bool]]:
    for op in ops:
        yield op, is_inside
        if not is_inside or op.name.startswith("sdy."):
            inner = (view.operation for region in op.regions for block in region.blocks for view in block.operations)
            yield from _drawn_ops(inner, is_inside=True)


def _suffixes(scope: str) -> Iterator[str]:
    """A name stack and its suffixes, longest first: an operation in a called function has only the last part."""
    yield scope
    yield from (scope[position + 1 :] for position, letter in enumerate(scope) if letter == "/")


def node_data(graph: ExplorerGraph, collectives: Iterable[Collective]) -> str:
    """The wire bytes by operation of the program's graph, as JSON. The name gives the bytes that no operation caused, such as
    those of a result's sharding."""
    wire_bytes: dict[ExplorerNode, float] = {}
    elsewhere = 0.0
    for collective in collectives:
        for origin in collective.origins:
            wire = collective.total_bytes * origin.share
            if (node := graph.find(origin)) is None:
                elsewhere += wire
            else:
                wire_bytes[node] = wire_bytes.get(node, 0.0) + wire
    name = f"{_NAME}, beside {size_text(elsewhere)} of no operation" if elsewhere else _NAME
    results: dict[str, dict[str, dict[str, float]]] = {"main": {}}
    for node, wire in wire_bytes.items():
        results.setdefault(node.graph, {})[node.id] = {"value": wire}
    return json.dumps(
        {graph: {"name": name, "results": by_node, "gradient": _GRADIENT} for graph, by_node in results.items()}, indent=2
    )


_NAME = "wire bytes per device and step"
_GRADIENT = [{"stop": 0, "bgColor": "#fff4e6"}, {"stop": 1, "bgColor": "#d9480f"}]
