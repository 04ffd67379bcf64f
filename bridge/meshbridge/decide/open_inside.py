"""Constraints inside a program, taken as the least that is split: along further axes refinement may go on."""

from __future__ import annotations

from meshbridge.decide.graph import Graph, Tensor


def open_inside(graph: Graph) -> bool:
    """Opens the closed dimensions of values that the user annotated, but for arguments and results; whether there are any.

    Each dimension still begins with the axes that are written there, and axes that the user wants to be replicated along
    stay out. What says more than a split stays as it is: partial values, halos, offsets, and what a region beside it is local to.
    """
    found = [index for index, tensor in enumerate(graph.tensors) if _is_closed_inside(tensor)]
    for index in found:
        graph.describe(index, open=(True,) * len(graph.tensors[index].shape))
    return bool(found)


def closes_inside(graph: Graph) -> bool:
    """Whether there are such values."""
    return any(map(_is_closed_inside, graph.tensors))


def _is_closed_inside(tensor: Tensor) -> bool:
    is_split_alone = tensor.layout is None and not tensor.region_axes
    return tensor.user and is_split_alone and not tensor.boundary and not all(tensor.open)
