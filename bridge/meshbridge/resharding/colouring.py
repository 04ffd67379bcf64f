"""Edge colouring of bipartite graphs: as few colours as the largest degree (Koenig). A colour is a round of permutes."""

from __future__ import annotations

from collections.abc import Sequence


def colour_edges(edges: Sequence[tuple[int, int]]) -> list[int]:
    """A colour for every edge (sender, receiver), such that no two edges of one colour share a sender or a receiver.

    Each edge takes the lowest colour free at its sender; where the receiver has it already, the path that alternates between that
    colour and one free at the receiver swaps the two.
    """
    colours = [-1] * len(edges)
    used: tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]] = ({}, {})  # side, vertex, colour -> edge
    for edge, (sender, receiver) in enumerate(edges):
        at_sender, at_receiver = used[0].setdefault(sender, {}), used[1].setdefault(receiver, {})
        wanted, other = _free(at_sender), _free(at_receiver)
        if wanted in at_receiver:
            _swap(edges, colours, used, receiver, wanted, other)
        colours[edge] = wanted
        at_sender[wanted] = at_receiver[wanted] = edge
    return colours


def _free(taken: dict[int, int]) -> int:
    colour = 0
    while colour in taken:
        colour += 1
    return colour


def _swap(
    edges: Sequence[tuple[int, int]],
    colours: list[int],
    used: tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]],
    vertex: int,
    colour: int,
    other: int,
) -> None:
    """Exchanges two colours along the path that leaves the receiver `vertex` by an edge of `colour`."""
    path, side = [], 1
    step = colour
    while (edge := used[side].get(vertex, {}).get(step)) is not None:
        path.append(edge)
        side = 1 - side
        vertex = edges[edge][side]
        step = other if step == colour else colour
    for edge in path:
        for side in (0, 1):
            del used[side][edges[edge][side]][colours[edge]]
    for edge in path:
        colours[edge] = other if colours[edge] == colour else colour
        for side in (0, 1):
            used[side][edges[edge][side]][colours[edge]] = edge
