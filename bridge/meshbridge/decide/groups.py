"""Sharding groups: what their members are annotated with, joined into one annotation that all of them share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.ir.sharding import Axes


def share_tensors(graph: Graph, groups: Iterable[list[int]], places: dict[int, str]) -> None:
    """Gives the members of each group one tensor. Groups that have a member in common are one group.

    Annotations that go together are joined: an open dimension takes the axes of those who say more. A member whose annotation
    contradicts those before it stays as it is annotated, in a tensor of its own; `graph.warnings` says so. `places` are the
    source locations of the statements that make tensors members.
    """
    standing: dict[int, int] = {}
    for members in _merged(groups):
        annotated = [tensor for tensor in members if graph.tensors[tensor].user]
        shared = annotated[0] if annotated else members[0]
        for other in members:
            if other == shared:
                continue
            joined = _join(graph.tensors[shared], graph.tensors[other])
            if joined is not None:
                standing[other] = shared
                graph.describe(shared, **joined, boundary=graph.tensors[shared].boundary or graph.tensors[other].boundary)
            else:
                graph.warnings.append(_contradiction(graph, shared, other, places))
        graph.describe(shared, tied=True)
    if standing:
        graph.tensor_of = {value: standing.get(tensor, tensor) for value, tensor in graph.tensor_of.items()}
        for node in graph.nodes:
            _rename(node, standing)


def _merged(groups: Iterable[list[int]]) -> list[list[int]]:
    """The groups, of which those that have a member in common are one; each member once."""
    group_of: dict[int, list[int]] = {}
    for members in groups:
        merged = list(dict.fromkeys(known for tensor in members for known in group_of.get(tensor, [tensor])))
        group_of.update(dict.fromkeys(merged, merged))
    return list({id(merged): merged for merged in group_of.values()}.values())


def _rename(node: Node, standing: dict[int, int]) -> None:
    node.operands = tuple(standing.get(tensor, tensor) for tensor in node.operands)
    node.results = tuple(standing.get(tensor, tensor) for tensor in node.results)


def _join(shared: Tensor, other: Tensor) -> dict[str, Any] | None:
    """What changes of `shared` where it takes the annotation of `other` in; None if they contradict each other."""
    if not other.user:
        return {}
    if shared.layout != other.layout:
        return None
    joined: list[Axes] = []
    for ours, theirs, may, might in zip(shared.split, other.split, shared.open, other.open, strict=True):
        longer, shorter, extends = (ours, theirs, might) if len(ours) >= len(theirs) else (theirs, ours, may)
        if longer[: len(shorter)] != shorter or (longer != shorter and not extends):
            return None
        joined.append(longer)
    axes = [axis for along in joined for axis in along]
    banned = shared.banned | other.banned
    if len(set(axes)) < len(axes) or not banned.isdisjoint(axes):
        return None
    both = shared.priorities and other.priorities
    priorities = tuple(map(min, zip(shared.priorities, other.priorities, strict=True))) if both else ()
    return {
        "split": tuple(joined),
        "written": tuple(joined),
        "open": tuple(may and might for may, might in zip(shared.open, other.open, strict=True)),
        "banned": banned,
        "priorities": priorities,
    }


def _contradiction(graph: Graph, first: int, second: int, places: dict[int, str]) -> str:
    ours, theirs = (_written(graph, tensor) for tensor in (first, second))
    return (
        f"{places[second]}: warning: 'sdy.sharding_group' op takes in a value annotated {theirs}, expected {ours} like "
        f"the member at {places[first]}\n  hint: each stays as it is annotated; those without annotation follow the first"
    )


def _written(graph: Graph, tensor: int) -> str:
    """The annotation of a tensor as Shardy writes dimensions, `[{a, ?}, {}]`."""
    dims = []
    for axes, is_open in zip(graph.tensors[tensor].written, graph.tensors[tensor].open, strict=True):
        dims.append("{" + ", ".join([*map(graph.mesh.axis_name, axes), *["?"] * is_open]) + "}")
    return f"[{', '.join(dims)}]"
