"""Wire bytes as node data for Model Explorer, which then shows them at the operations of a program's graph.

    {"main": {"name": "wire bytes per device and step", "results": {"4": {"value": 98304.0}}, "gradient": […]}}

The graph is that of the program before it is partitioned, in MLIR: one for each function, whose operations Model Explorer numbers
in the order of the text. What a collective sends counts for the operation that asked for it. That is found again by its location:
what JAX calls it, and the line of the user's source. Where several have the same, the last of those that are not within another
one is meant.
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
    "As Model Explorer numbers it."
    label: str
    "The operation's name."
    is_inside: bool
    "Whether it is in a region of another one."


@dataclass
class ExplorerGraph:
    """The operations of a program by where they come from, in the order of the text."""

    by_name: dict[str, list[tuple[SourceLocation, ExplorerNode]]] = field(default_factory=dict)
    "By JAX's name stack; those of which the program has none by the empty one."

    @classmethod
    def read(cls, module: ir.Module) -> ExplorerGraph:
        """That of a program before it is partitioned."""
        graph = cls()
        for op, node in nodes(module):
            trail = trail_at(op.location)
            graph.by_name.setdefault("/".join(trail.stacks), []).append((trail.user_line, node))
        return graph

    def find(self, origin: Origin) -> ExplorerNode | None:
        """The operation that an origin names; None where there is none any more."""
        for name in _ends(origin.scope):
            named = self.by_name.get(name, ())
            at_line = [node for line, node in named if line == origin.location]
            # A library's line is not the user's, which is that of the call.
            if found := at_line or [node for line, node in named if line.is_library or not line.file]:
                return min(reversed(found), key=lambda node: node.is_inside)
        return None


def nodes(module: ir.Module) -> Iterator[tuple[ir.Operation, ExplorerNode]]:
    """The operations that Model Explorer draws, each with its node. It looks into the regions of an operation of a function, and
    further only into those of Shardy's."""
    for function in module.body.operations:
        if function.operation.name == "func.func":
            graph = ir.StringAttr(function.operation.attributes["sym_name"]).value
            body = (view.operation for block in function.operation.regions[0].blocks for view in block.operations)
            for number, (op, is_inside) in enumerate(_drawn(body, is_inside=False)):
                yield op, ExplorerNode(graph, str(number), op.name, is_inside)


def _drawn(ops: Iterable[ir.Operation], *, is_inside: bool) -> Iterator[tuple[ir.Operation, bool]]:
    for op in ops:
        yield op, is_inside
        if not is_inside or op.name.startswith("sdy."):
            inner = (view.operation for region in op.regions for block in region.blocks for view in block.operations)
            yield from _drawn(inner, is_inside=True)


def _ends(scope: str) -> Iterator[str]:
    """A name stack and its ends, longest first: an operation of a function that is called has the last part alone."""
    yield scope
    yield from (scope[position + 1 :] for position, letter in enumerate(scope) if letter == "/")


def node_data(graph: ExplorerGraph, collectives: Iterable[Collective]) -> str:
    """What the collectives send, at the operations of the graph of the same program, as JSON. The name says how many bytes no
    operation asked for, such as those of a result's sharding."""
    sent: dict[ExplorerNode, float] = {}
    elsewhere = 0.0
    for collective in collectives:
        for origin in collective.origins:
            wire = collective.total_bytes * origin.share
            if (node := graph.find(origin)) is None:
                elsewhere += wire
            else:
                sent[node] = sent.get(node, 0.0) + wire
    name = f"{_NAME}, beside {size_text(elsewhere)} of no operation" if elsewhere else _NAME
    results: dict[str, dict[str, dict[str, float]]] = {"main": {}}
    for node, wire in sent.items():
        results.setdefault(node.graph, {})[node.id] = {"value": wire}
    return json.dumps(
        {graph: {"name": name, "results": found, "gradient": _GRADIENT} for graph, found in results.items()}, indent=2
    )


_NAME = "wire bytes per device and step"
_GRADIENT = [{"stop": 0, "bgColor": "#fff4e6"}, {"stop": 1, "bgColor": "#d9480f"}]
