"""Dimension classes: tensor dimensions that must be sharded alike, because ops tie them by common loops.

    %0 = stablehlo.dot_general %x, %w          rows of %x and of %0 are one loop, columns of %w and of %0 another
    %1 = stablehlo.tanh %0                     %1 has both

Rows of %x, %0 and %1 are one class (union-find). Closed dimensions that the user annotated belong to none. Classes come in sizes:
*wide* ones tie through all ops, *batch* ones only dimensions that all operands and results of an op have, like the heads of an
attention or the experts of a mixture, *narrow* ones through ops that pass their dimensions on, *stored* ones through ops that
compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshbridge.decide.graph import Graph, Node
from meshbridge.ops.traits import Trait, ops_with

Dimension = tuple[int, int]
"""A tensor and a dimension of it."""

MOVING = (ops_with(Trait.MOVEMENT) | {"stablehlo.convert"}) - {"stablehlo.gather"}
"""Ops whose results only contain elements of their operands. A table lookup counts as computation."""


@dataclass(frozen=True)
class ClassSize:
    """The reach of classes: they extend through the nodes for which `ties` holds. `copies` are dimensions of copies of values
    that the user has sharded; only classes that reach beyond such copying change them."""

    ties: Callable[[Node], bool]
    moves_copies: bool = True
    is_batch: bool = False
    "Whether a node only ties dimensions that all of its tensors have."


WIDE = ClassSize(lambda node: True)
BATCH = ClassSize(lambda node: True, is_batch=True)
"""The independent parts of a batched computation, which only change together."""
NARROW = ClassSize(lambda node: node.kind.passes_through)
STORED = ClassSize(lambda node: node.is_identity or node.name in MOVING, moves_copies=False)
"""Values stored for later, as in the stacks of a loop: a stack of gathered activations avoids gathering them again. A stack of
gathered parameters would too, but a user who shards parameters wants them to stay sharded."""


@dataclass(slots=True)
class _Ties:
    """Dimensions that one node ties, per loop of it, and those of them that belong to copies."""

    node: Node
    tied: list[list[Dimension]]
    batch: list[list[Dimension]]
    "Dimensions that all of its tensors have, also if the user has sharded them."
    copies: list[Dimension]


def classes_of(graph: Graph, sizes: Iterable[ClassSize]) -> list[tuple[Dimension, ...]]:
    """Dimension classes, each once, size after size, the largest first, without closed dimensions that the user annotated."""
    ties = _ties(graph)
    return [*dict.fromkeys(dimensions for size in sizes for dimensions in _of_size(ties, size))]


def _of_size(ties: list[_Ties], size: ClassSize) -> list[tuple[Dimension, ...]]:
    ties = [node_ties for node_ties in ties if size.ties(node_ties.node)]
    class_of: dict[Dimension, list[Dimension]] = {}
    find = class_of.get
    for node_ties in ties:
        for root, *tied in node_ties.batch if size.is_batch else node_ties.tied:
            members = find(root)
            if members is None:
                members = class_of[root] = [root]
            for dimension in tied:
                merged = find(dimension)
                if merged is None:
                    members.append(dimension)
                    class_of[dimension] = members
                elif merged is not members:
                    if len(merged) > len(members):
                        members, merged = merged, members
                    members += merged
                    class_of.update(dict.fromkeys(merged, members))
    classes = {id(members): members for members in class_of.values()}
    if not size.moves_copies:
        for dimension in [copy for node_ties in ties for copy in node_ties.copies]:
            classes.pop(id(class_of[dimension]), None)
    dimension_sets: Iterable[Iterable[Dimension]] = classes.values()
    if size.is_batch:
        movable = {dimension for node_ties in ties for tied in node_ties.tied for dimension in tied}
        dimension_sets = [movable.intersection(dimensions) for dimensions in dimension_sets]
    ordered = [tuple(sorted(dimensions)) for dimensions in dimension_sets]
    return sorted(ordered, key=lambda dimensions: (-len(dimensions), dimensions))


def _ties(graph: Graph) -> list[_Ties]:
    """The dimensions that each node ties."""
    blocked, redefined = _blocked_dimensions(graph), _redefined(graph)
    ties: list[_Ties] = []
    for node in graph.nodes:
        kind, rule = node.kind, node.kind.rule
        if not (kind.forward and kind.backward):
            continue
        movable_dims: dict[int, list[Dimension]] = {}
        fixed_dims: dict[int, list[Dimension]] = {}
        copied: list[int] = []
        for tensor, dims in zip(node.operands + node.results, rule.operands + rule.results, strict=True):
            if tensor < 0:
                continue
            description = graph.tensors[tensor]
            is_movable = description.movable
            for dim, loops in enumerate(dims):
                if not loops:
                    continue
                if is_movable[dim] and (tensor, dim) not in blocked:
                    movable_dims.setdefault(loops[0], []).append((tensor, dim))
                    if description.written_along(dim):
                        copied.append(loops[0])
                else:
                    fixed_dims.setdefault(loops[0], []).append((tensor, dim))
                    if description.split[dim]:
                        copied.append(loops[0])
        is_redefined = node.is_identity and node.results[0] in redefined
        batch = [movable_dims[loop] + fixed_dims.get(loop, []) for loop in kind.batch if loop in movable_dims]
        copies = [] if is_redefined else [movable_dims[loop][0] for loop in copied if loop in movable_dims]
        ties.append(_Ties(node, [*movable_dims.values()], batch, copies))
    return ties


def _blocked_dimensions(graph: Graph) -> set[Dimension]:
    """Dimensions whose split is final after propagation, because a rule forbids propagating splits to them."""
    return {
        (tensor, dim)
        for node in graph.nodes
        if node.rule.blocked
        for tensor, dims in zip((*node.operands, *node.results), (*node.rule.operands, *node.rule.results), strict=True)
        for dim, loops in enumerate(dims)
        if tensor >= 0 and not {*loops}.isdisjoint(node.rule.blocked)
    }


def _redefined(graph: Graph) -> set[int]:
    """Tensors that every iteration of a loop redefines; they are no copies of their initial values."""
    return {
        node.results[0]
        for node in graph.nodes
        if node.is_identity and node.name == "stablehlo.return" and node.operands != node.results
    }
