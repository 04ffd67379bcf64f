"""Propagates the user's declarations of partial values (JAX's and Shardy's `unreduced`) to values without annotation.

    %0 = stablehlo.dot_general %x, %w              has one reader, which wants the sum over shards unreduced
    %1 = sdy.sharding_constraint %0 <@m, [{}, {}], unreduced={"x"}>
    %2:2 = stablehlo.while(%sum = %1, …)           carries it: initial and yielded values are declared alike
    %3 = stablehlo.add %sum, %1                    adds the terms of each shard: its result is declared alike

A declared value is reduced once, for the first reader that needs it reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshbridge.decide.graph import Graph, Node
from meshbridge.ir.sharding import Axes, Sharding
from meshbridge.ops.linear import termwise_operands


def propagate_unreduced(graph: Graph) -> None:
    """Declares partial, in place: values passed on from sources that are all declared alike, results that all readers want
    partial, and operands that linear ops pass on."""
    if not any(tensor.summed_axes for tensor in graph.tensors):
        return
    _forward(graph)
    _backward(graph)
    for node in graph.nodes:
        if not node.is_identity and (passed_partial := _passed_partial(graph, node)):
            graph.change_kind(node, unreduced=passed_partial)


def _forward(graph: Graph) -> None:
    """Declares the carried values of loops and the results of branches and barriers, according to their sources."""
    sources = _sources(graph)
    declared: dict[int, Sharding | None] = {}
    unknown = set(sources)
    changed = True
    while changed:  # a value carried by two loops is its own source: a source that is still unknown contradicts none
        changed = False
        for tensor, incoming in sources.items():
            layouts = [
                declared[source] if source in declared else graph.tensors[source].layout
                for source in incoming
                if source not in unknown
            ]
            common = layouts[0] if layouts and all(_equal_sums(layouts[0], layout) for layout in layouts) else None
            if layouts and (tensor in unknown or not _equal_sums(declared[tensor], common)):
                declared[tensor], changed = common, True
                unknown.discard(tensor)
    for tensor, layout in declared.items():
        if layout is not None:
            _declare(graph, tensor, layout)


def _sources(graph: Graph) -> dict[int, list[int]]:
    """Per unannotated tensor that only identities define, the tensors that they pass on."""
    computed = {tensor for node in graph.nodes if not node.is_identity for tensor in node.results}
    sources: dict[int, list[int]] = {}
    for node in graph.nodes:
        target = node.results[0] if node.is_identity else -1
        if target >= 0 and target not in computed and not graph.tensors[target].annotated and not node.kind.region_axes:
            sources.setdefault(target, []).append(node.operands[0])
    return sources


def _equal_sums(left: Sharding | None, right: Sharding | None) -> bool:
    return (left.summed_axes if left else ()) == (right.summed_axes if right else ())


def _backward(graph: Graph) -> None:
    """Declares results that all readers annotate alike."""
    for node in reversed(graph.nodes):
        tensor = node.only_result
        if node.is_identity or tensor < 0 or graph.tensors[tensor].annotated or graph.tensors[tensor].tied:
            continue
        wanted = _wanted_by_readers(graph, tensor)
        if wanted is not None and _may_leave(graph, node, wanted.summed_axes):
            _declare(graph, tensor, wanted)


def _wanted_by_readers(graph: Graph, tensor: int) -> Sharding | None:
    """The partial sum that all readers of a tensor declare."""
    wanted: list[Sharding | None] = []
    for node in graph.users[tensor]:
        reader = graph.nodes[node]
        if tensor in reader.operands:
            wanted.append(graph.tensors[reader.results[0]].layout if reader.is_identity and not reader.kind.region_axes else None)
    if not wanted or len(wanted) < graph.uses[tensor] or not all(_equal_sums(wanted[0], layout) for layout in wanted):
        return None
    return wanted[0] if wanted[0] and wanted[0].summed_axes else None


def _may_leave(graph: Graph, node: Node, axes: Axes) -> bool:
    """Whether the op could leave its result a sum over shards along `axes`."""
    return any(loop.reduction == "sum" for loop in node.rule.loops) or bool(_partial_operands(graph, node, axes))


def _declare(graph: Graph, tensor: int, layout: Sharding) -> None:
    tensor_before = graph.tensors[tensor]
    declared = replace(layout, split_axes=tensor_before.split)
    graph.describe(tensor, layout=declared, banned=tensor_before.banned | frozenset(layout.partial_axes))


def _partial(graph: Graph, tensors: Iterable[int]) -> list[Axes]:
    return [graph.tensors[tensor].summed_axes if tensor >= 0 else () for tensor in tensors]


def _passed_partial(graph: Graph, node: Node) -> tuple[Axes, ...]:
    """Per operand, the axes along which the op takes it partial because its result is declared so."""
    tensor = node.only_result
    axes = graph.tensors[tensor].summed_axes if tensor >= 0 else ()
    return _partial_operands(graph, node, axes) if axes else ()


def _partial_operands(graph: Graph, node: Node, axes: Axes) -> tuple[Axes, ...]:
    """Per operand, the axes along which the op takes it partial to leave its result partial along `axes`; () if it cannot. A
    value combined with a partial one, for example in a sum, becomes partial on one device of each group."""
    partial = _partial(graph, node.operands)
    if axes not in partial:
        return ()
    if terms := termwise_operands(node.op):
        return tuple([axes if number in terms else () for number in range(len(partial))])
    return tuple(partial) if node.carried(partial) == axes else ()
