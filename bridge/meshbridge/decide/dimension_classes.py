"""Dimension classes: tensor dimensions that must be sharded alike, dimensions of one loop of an op, tied across ops.

    %0 = stablehlo.dot_general %x, %w          rows of %x and of %0 are one loop, columns of %w and of %0 another
    %1 = stablehlo.tanh %0                     %1 has both

Rows of %x, %0 and %1 are one class (union-find). Dimensions that the user annotated, and closed, belong to none. Classes come in
sizes: *wide* ones tie through all ops, *batch* ones only dimensions that all operands and results of an op have, as the heads of
an attention or the experts of a mixture, *narrow* ones through ops that pass their dimensions on, *held* ones through those that
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
"""Ops whose results hold what their operands hold. What is looked up in a table counts as computed."""


@dataclass(frozen=True)
class ClassSize:
    """How far classes reach: through the nodes that `ties` says. `copies` are dimensions that hold what the user has placed
    split; they change only in classes that reach beyond such copying."""

    ties: Callable[[Node], bool]
    moves_copies: bool = True
    is_batch: bool = False
    "Whether a node ties only what all of its tensors have."


WIDE = ClassSize(lambda node: True)
BATCH = ClassSize(lambda node: True, is_batch=True)
"""A part of a program that is computed side by side, and only together is worth computing otherwise."""
NARROW = ClassSize(lambda node: node.kind.passes_through)
HELD = ClassSize(lambda node: node.is_identity or node.name in MOVING, moves_copies=False)
"""What is kept for later, as in the stacks of a loop: such a stack of gathered activations spares gathering them again. One of
parameters would too, but whoever splits parameters wants them to be kept split."""


@dataclass(slots=True)
class _Ties:
    """Dimensions that one node ties, per loop of it, and those of them that hold copies."""

    node: Node
    tied: list[list[Dimension]]
    batch: list[list[Dimension]]
    "What all of its tensors have, also where the user has placed it."
    copies: list[Dimension]


def classes_of(graph: Graph, sizes: Iterable[ClassSize]) -> list[tuple[Dimension, ...]]:
    """Dimension classes, those of one size after those of another, each once, the largest of a size first; user-annotated
    dimensions belong to none."""
    ties = _ties(graph)
    return [*dict.fromkeys(found for size in sizes for found in _of_size(ties, size))]


def _of_size(ties: list[_Ties], size: ClassSize) -> list[tuple[Dimension, ...]]:
    ties = [each for each in ties if size.ties(each.node)]
    class_of: dict[Dimension, list[Dimension]] = {}
    find = class_of.get
    for each in ties:
        for first, *others in each.batch if size.is_batch else each.tied:
            joined = find(first)
            if joined is None:
                joined = class_of[first] = [first]
            for dimension in others:
                other = find(dimension)
                if other is None:
                    joined.append(dimension)
                    class_of[dimension] = joined
                elif other is not joined:
                    if len(other) > len(joined):
                        joined, other = other, joined
                    joined += other
                    class_of.update(dict.fromkeys(other, joined))
    classes = {id(found): found for found in class_of.values()}
    if not size.moves_copies:
        for dimension in [copy for each in ties for copy in each.copies]:
            classes.pop(id(class_of[dimension]), None)
    if size.is_batch:
        movable = {dimension for each in ties for tied in each.tied for dimension in tied}
        found = [tuple(sorted(movable.intersection(dimensions))) for dimensions in classes.values()]
    else:
        found = [tuple(sorted(dimensions)) for dimensions in classes.values()]
    return sorted(found, key=lambda dimensions: (-len(dimensions), dimensions))


def _ties(graph: Graph) -> list[_Ties]:
    """What each node ties."""
    blocked, redefined = _blocked_dimensions(graph), _redefined(graph)
    ties: list[_Ties] = []
    for node in graph.nodes:
        kind, rule = node.kind, node.kind.rule
        if not (kind.forward and kind.backward):
            continue
        home: dict[int, list[Dimension]] = {}
        fixed: dict[int, list[Dimension]] = {}
        placed: list[int] = []
        for tensor, dims in zip(node.operands + node.results, rule.operands + rule.results, strict=True):
            if tensor < 0:
                continue
            description = graph.tensors[tensor]
            movable = description.movable
            for dim, loops in enumerate(dims):
                if not loops:
                    continue
                if movable[dim] and (tensor, dim) not in blocked:
                    home.setdefault(loops[0], []).append((tensor, dim))
                    if description.written_along(dim):
                        placed.append(loops[0])
                else:
                    fixed.setdefault(loops[0], []).append((tensor, dim))
                    if description.split[dim]:
                        placed.append(loops[0])
        is_redefined = node.is_identity and node.results[0] in redefined
        batch = [home[loop] + fixed.get(loop, []) for loop in kind.batch if loop in home]
        ties.append(
            _Ties(node, [*home.values()], batch, [home[loop][0] for loop in placed if loop in home] if not is_redefined else [])
        )
    return ties


def _blocked_dimensions(graph: Graph) -> set[Dimension]:
    """Dimensions that are split as the sweeps have found, because a rule forbids to carry splits over to them."""
    return {
        (tensor, dim)
        for node in graph.nodes
        if node.rule.blocked
        for tensor, dims in zip((*node.operands, *node.results), (*node.rule.operands, *node.rule.results), strict=True)
        for dim, loops in enumerate(dims)
        if tensor >= 0 and not {*loops}.isdisjoint(node.rule.blocked)
    }


def _redefined(graph: Graph) -> set[int]:
    """Tensors that a loop defines anew in every trip, so that they are no copies of what they start as."""
    return {
        node.results[0]
        for node in graph.nodes
        if node.is_identity and node.name == "stablehlo.return" and node.operands != node.results
    }
