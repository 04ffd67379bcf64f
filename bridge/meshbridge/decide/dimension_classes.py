"""Dimension classes: tensor dimensions that must be sharded alike, dimensions of one loop of an op, tied across ops.

    %0 = stablehlo.dot_general %x, %w          rows of %x and of %0 are one loop, columns of %w and of %0 another
    %1 = stablehlo.tanh %0                     %1 has both

Rows of %x, %0 and %1 are one class (union-find). Dimensions that the user annotated, and closed, belong to none. Classes come in
sizes: *wide* ones tie through all ops, *narrow* ones through those that pass their dimensions on, *held* ones through those that
compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshbridge.decide.graph import Graph, Node

Dimension = tuple[int, int]
"""A tensor and a dimension of it."""

MOVING = frozenset(
    f"stablehlo.{name}"
    for name in [
        "transpose",
        "reshape",
        "broadcast_in_dim",
        "dynamic_slice",
        "dynamic_update_slice",
        "slice",
        "reverse",
        "convert",
    ]
)
"""Ops whose results hold what their operands hold."""


@dataclass(frozen=True)
class ClassSize:
    """How far classes reach: through the nodes that `ties` says. `copies` are dimensions that hold what the user has placed
    split; they change only in classes that reach beyond such copying."""

    ties: Callable[[Node], bool]
    moves_copies: bool = True


WIDE = ClassSize(lambda node: True)
NARROW = ClassSize(lambda node: node.kind.passes_through)
HELD = ClassSize(lambda node: node.is_identity or node.name in MOVING, moves_copies=False)
"""What is kept for later, as in the stacks of a loop: such a stack of gathered activations spares gathering them again. One of
parameters would too, but whoever splits parameters wants them to be kept split."""


def classes_of(graph: Graph, size: ClassSize) -> list[tuple[Dimension, ...]]:
    """Dimension classes of one size, the largest first; user-annotated dimensions belong to none."""
    parent: dict[Dimension, Dimension] = {}

    def find(dimension: Dimension) -> Dimension:
        while parent.setdefault(dimension, dimension) != dimension:
            parent[dimension] = parent[parent[dimension]]
            dimension = parent[dimension]
        return dimension

    copies: list[Dimension] = []
    blocked, redefined = _blocked_dimensions(graph), _redefined(graph)
    for node in graph.nodes:
        if not (node.kind.forward and node.kind.backward and size.ties(node)):
            continue
        home: dict[int, Dimension] = {}
        placed: list[int] = []
        for tensor, dims in zip((*node.operands, *node.results), (*node.rule.operands, *node.rule.results), strict=True):
            if tensor < 0:
                continue
            for dim, loops in enumerate(dims):
                description = graph.tensors[tensor]
                may_move = loops and description.movable[dim] and (tensor, dim) not in blocked
                if may_move:
                    dimension = find((tensor, dim))
                    parent[dimension] = find(home.setdefault(loops[0], dimension))
                if loops and (description.written_along(dim) if may_move else description.split[dim]):
                    placed.append(loops[0])
        if not (node.is_identity and node.results[0] in redefined):
            copies += [home[loop] for loop in placed if loop in home]
    members: dict[Dimension, list[Dimension]] = {}
    for dimension in parent:
        members.setdefault(find(dimension), []).append(dimension)
    if not size.moves_copies:
        for dimension in copies:
            members.pop(find(dimension), None)
    return sorted(
        (tuple(sorted(dimensions)) for dimensions in members.values()), key=lambda dimensions: (-len(dimensions), dimensions)
    )


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
