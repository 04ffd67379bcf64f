"""Joins the annotations of the members of a sharding group into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.ir.sharding import Axes


def share_tensors(graph: Graph, groups: Iterable[list[int]], locations: dict[int, str]) -> None:
    """Gives the members of each group one tensor. Groups with a common member are one group.

    Compatible annotations are joined: an open dimension takes the longer list of axes. A member whose annotation contradicts the
    earlier ones keeps its own tensor; `graph.warnings` reports it. `locations` are the source locations of the statements that
    put tensors into groups.
    """
    representative: dict[int, int] = {}
    for members in _merged(groups):
        annotated = [tensor for tensor in members if graph.tensors[tensor].annotated]
        shared = annotated[0] if annotated else members[0]
        for member in members:
            if member == shared:
                continue
            changes = _join(graph.tensors[shared], graph.tensors[member])
            if changes is not None:
                representative[member] = shared
                graph.describe(shared, **changes, boundary=graph.tensors[shared].boundary or graph.tensors[member].boundary)
            else:
                graph.warnings.append(_contradiction(graph, shared, member, locations))
        graph.describe(shared, tied=True)
    if representative:
        graph.tensor_of = {value: representative.get(tensor, tensor) for value, tensor in graph.tensor_of.items()}
        for node in graph.nodes:
            _rename(node, representative)


def _merged(groups: Iterable[list[int]]) -> list[list[int]]:
    """The groups, merged if they have a common member; each member once."""
    group_of: dict[int, list[int]] = {}
    for members in groups:
        merged = list(dict.fromkeys(member for tensor in members for member in group_of.get(tensor, [tensor])))
        group_of.update(dict.fromkeys(merged, merged))
    return list({id(merged): merged for merged in group_of.values()}.values())


def _rename(node: Node, representative: dict[int, int]) -> None:
    node.operands = tuple(representative.get(tensor, tensor) for tensor in node.operands)
    node.results = tuple(representative.get(tensor, tensor) for tensor in node.results)


def _join(shared: Tensor, other: Tensor) -> dict[str, Any] | None:
    """The fields of `shared` that change if it adopts the annotation of `other`; None if the two contradict."""
    if not other.annotated:
        return {}
    if shared.layout != other.layout:
        return None
    split: list[Axes] = []
    for ours, theirs, may, might in zip(shared.split, other.split, shared.open, other.open, strict=True):
        longer, shorter, extends = (ours, theirs, might) if len(ours) >= len(theirs) else (theirs, ours, may)
        if longer[: len(shorter)] != shorter or (longer != shorter and not extends):
            return None
        split.append(longer)
    axes = [axis for along in split for axis in along]
    banned = shared.banned | other.banned
    if len(set(axes)) < len(axes) or not banned.isdisjoint(axes):
        return None
    have_priorities = shared.priorities and other.priorities
    priorities = tuple(map(min, zip(shared.priorities, other.priorities, strict=True))) if have_priorities else ()
    return {
        "split": tuple(split),
        "written": tuple(split),
        "open": tuple(may and might for may, might in zip(shared.open, other.open, strict=True)),
        "banned": banned,
        "priorities": priorities,
    }


def _contradiction(graph: Graph, first: int, second: int, locations: dict[int, str]) -> str:
    ours, theirs = (_written(graph, tensor) for tensor in (first, second))
    return (
        f"{locations[second]}: warning: 'sdy.sharding_group' op takes in a value annotated {theirs}, expected {ours} like "
        f"the member at {locations[first]}\n  hint: each stays as it is annotated; those without annotation follow the first"
    )


def _written(graph: Graph, tensor: int) -> str:
    """The annotation of a tensor as Shardy writes dimensions, `[{a, ?}, {}]`."""
    dims = []
    for axes, is_open in zip(graph.tensors[tensor].written, graph.tensors[tensor].open, strict=True):
        dims.append("{" + ", ".join([*map(graph.mesh.axis_name, axes), *["?"] * is_open]) + "}")
    return f"[{', '.join(dims)}]"
