"""Lets refinement split values inside a program further than their constraints."""

from __future__ import annotations

from meshbridge.decide.graph import Graph, Tensor


def relax_constraints(graph: Graph) -> bool:
    """Opens the closed dimensions of annotated values, except arguments and results; returns whether there are any.

    Each dimension still begins with the written axes, and axes along which the user wants a value replicated stay excluded.
    Annotations with more than splits are kept: partial values, halos, offsets, and values of manual computations.
    """
    closed = [index for index, tensor in enumerate(graph.tensors) if _is_closed_inside(tensor)]
    for index in closed:
        graph.describe(index, open=(True,) * len(graph.tensors[index].shape))
    return bool(closed)


def has_closed_constraints(graph: Graph) -> bool:
    """Whether `relax_constraints` would open any dimension."""
    return any(map(_is_closed_inside, graph.tensors))


def _is_closed_inside(tensor: Tensor) -> bool:
    is_split_alone = tensor.layout is None and not tensor.region_axes
    return tensor.annotated and is_split_alone and not tensor.boundary and not all(tensor.open)
