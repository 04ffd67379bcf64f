"""Values that the user declares partial (JAX's and Shardy's `unreduced`), carried to where no annotation stands.

    %0 = stablehlo.dot_general %x, %w              computes what its only reader wants: a sum over shards, not reduced
    %1 = sdy.sharding_constraint %0 <@m, [{}, {}], unreduced={"x"}>
    %2:2 = stablehlo.while(%sum = %1, …)           carries it as it is: initial and yielded values are declared alike
    %3 = stablehlo.add %sum, %1                    adds the shards' terms: its result is declared alike

What is declared is reduced once, where a reader needs it reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshbridge.decide.graph import Graph, Node
from meshbridge.ir.sharding import Axes, Sharding
from meshbridge.ops.linear import termwise_operands


def carry_declarations(graph: Graph) -> None:
    """Declares partial, in place: values handed on as they are whose sources are all declared alike, results of ops whose
    readers all want them so, and operands that linear ops pass on."""
    if not any(tensor.summed_axes for tensor in graph.tensors):
        return
    _forward(graph)
    _backward(graph)
    for node in graph.nodes:
        if not node.is_identity and (kept := _kept(graph, node)):
            graph.change_kind(node, kept=kept)


def _forward(graph: Graph) -> None:
    """Carried values of loops, results of branches and of barriers: what they are made from decides."""
    sources = _sources(graph)
    declared: dict[int, Sharding | None] = {}
    unknown = set(sources)
    changed = True
    while changed:  # a value carried by two loops is made from itself: what is unknown yet contradicts nobody
        changed = False
        for tensor, incoming in sources.items():
            known = [
                declared[each] if each in declared else graph.tensors[each].layout for each in incoming if each not in unknown
            ]
            found = known[0] if known and all(_alike(known[0], other) for other in known) else None
            if known and (tensor in unknown or not _alike(declared[tensor], found)):
                declared[tensor], changed = found, True
                unknown.discard(tensor)
    for tensor, layout in declared.items():
        if layout is not None:
            _declare(graph, tensor, layout)


def _sources(graph: Graph) -> dict[int, list[int]]:
    """Per unannotated tensor that only identities define, what they hand on."""
    made = {tensor for node in graph.nodes if not node.is_identity for tensor in node.results}
    sources: dict[int, list[int]] = {}
    for node in graph.nodes:
        target = node.results[0] if node.is_identity else -1
        if target >= 0 and target not in made and not graph.tensors[target].user and not node.kind.region_axes:
            sources.setdefault(target, []).append(node.operands[0])
    return sources


def _alike(left: Sharding | None, right: Sharding | None) -> bool:
    return (left.summed_axes if left else ()) == (right.summed_axes if right else ())


def _backward(graph: Graph) -> None:
    """Results all of whose readers are annotations of one kind: such an annotation speaks of what the op leaves."""
    for node in reversed(graph.nodes):
        tensor = node.only_result
        if node.is_identity or tensor < 0 or graph.tensors[tensor].user or graph.tensors[tensor].tied:
            continue
        wanted = _wanted_by_readers(graph, tensor)
        if wanted is not None and _leaves(graph, node, wanted.summed_axes):
            _declare(graph, tensor, wanted)


def _wanted_by_readers(graph: Graph, tensor: int) -> Sharding | None:
    """The partial sum that all readers of a tensor declare it to be."""
    wanted: list[Sharding | None] = []
    for node in graph.users[tensor]:
        reader = graph.nodes[node]
        if tensor in reader.operands:
            wanted.append(graph.tensors[reader.results[0]].layout if reader.is_identity and not reader.kind.region_axes else None)
    if not wanted or len(wanted) < graph.uses[tensor] or not all(_alike(wanted[0], other) for other in wanted):
        return None
    return wanted[0] if wanted[0] and wanted[0].summed_axes else None


def _leaves(graph: Graph, node: Node, axes: Axes) -> bool:
    """Whether the op could leave its result a sum over shards along `axes`."""
    return any(loop.reduction == "sum" for loop in node.rule.loops) or bool(_passed_on(graph, node, axes))


def _declare(graph: Graph, tensor: int, layout: Sharding) -> None:
    known = graph.tensors[tensor]
    declared = replace(layout, split_axes=known.split)
    graph.describe(tensor, layout=declared, banned=known.banned | frozenset(layout.partial_axes))


def _partial(graph: Graph, tensors: Iterable[int]) -> list[Axes]:
    return [graph.tensors[tensor].summed_axes if tensor >= 0 else () for tensor in tensors]


def _kept(graph: Graph, node: Node) -> tuple[Axes, ...]:
    """Per operand, the axes along which the op takes it partial, because its result is declared so."""
    tensor = node.only_result
    axes = graph.tensors[tensor].summed_axes if tensor >= 0 else ()
    return _passed_on(graph, node, axes) if axes else ()


def _passed_on(graph: Graph, node: Node, axes: Axes) -> tuple[Axes, ...]:
    """Per operand, the axes along which the op takes it partial to leave its result partial along `axes`; () if it cannot. What
    joins a partial value, in a sum for one, is made one, on one device of each group."""
    partial = _partial(graph, node.operands)
    if axes not in partial:
        return ()
    if terms := termwise_operands(node.op):
        return tuple([axes if number in terms else () for number in range(len(partial))])
    return tuple(partial) if node.carried(partial) == axes else ()
