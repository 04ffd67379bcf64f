"""Dominance: leaves out choices that another choice of the same variable beats in cost and bytes, whatever the neighbours."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from meshbridge.solver.problem import Indices, Numbers

Flags = np.ndarray[Any, np.dtype[np.bool_]]

COMPARED = 4_000_000
"""Choices are not compared if a matrix needs more comparisons. Not measured: it keeps the table below 32 MB."""

SMALL = 1000
"""Smaller tables are added for many variables at once, which takes longer per entry. Not measured finely."""


def undominated(costs: list[Numbers], edges: dict[tuple[int, int], Numbers], owners: Indices, held: list[Numbers]) -> list[Flags]:
    """Per variable, flags of the choices that no other choice beats. Variables of one size are compared at once.

    `held` are the bytes of holders for each choice of the variables that own them, `owners`, in ascending order.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    rows = np.zeros(len(costs), dtype=np.int64)  # the row of each variable in its group
    for v, cost in enumerate(costs):
        rows[v] = len(groups[cost.size])
        groups[cost.size].append(v)
    excess = {size: _differences([costs[v] for v in group]) for size, group in groups.items()}
    compared = np.ones(len(costs), dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        for matrix, variables in _sides(edges):
            part = _least_excess(matrix)
            if part is None:
                compared[variables] = False
            elif part.size < SMALL:
                np.add.at(excess[matrix.shape[0]], rows[variables], part)
            else:
                for row in rows[variables]:
                    excess[matrix.shape[0]][row] += part
    holders: dict[int, list[int]] = defaultdict(list)
    for holder, sizes in enumerate(held):
        holders[sizes.size].append(holder)
    flags: list[Flags] = [np.ones(cost.size, dtype=np.bool_) for cost in costs]
    for size, group in groups.items():
        beaten = (excess[size] >= 0) & compared[group, None, None]
        if own := holders[size]:
            tables = np.stack([held[holder] for holder in own])
            fits = tables[:, :, None] >= tables[:, None, :]
            places, begins = np.unique(rows[owners[own]], return_index=True)
            beaten[places] &= np.logical_and.reduceat(fits, begins)
        for v, flag in zip(group, _unbeaten(beaten), strict=True):
            if flag.any():
                flags[v] = flag
    return flags


def _unbeaten(beaten: Flags) -> Flags:
    """`[variable, a]`: whether no choice b beats a, `beaten[variable, a, b]`. Among equals the first stays."""
    equal = beaten & beaten.transpose(0, 2, 1)
    later = np.triu(np.ones(beaten.shape[1:], dtype=np.bool_))
    return np.logical_not((beaten & ~(equal & later)).any(axis=2))


def _differences(numbers: list[Numbers]) -> Numbers:
    """`[variable, a, b]`: the number of a less that of b."""
    stacked = np.stack(numbers)
    return np.asarray(stacked[:, :, None] - stacked[:, None, :])


def _sides(edges: dict[tuple[int, int], Numbers]) -> list[tuple[Numbers, list[int]]]:
    """All matrices and their transposes, each with the variables whose choices are its rows."""
    sides: dict[tuple[int, bool], tuple[Numbers, list[int]]] = {}
    for pair, matrix in edges.items():
        for v, transposed in zip(pair, (False, True), strict=True):
            sides.setdefault((id(matrix), transposed), (matrix.T if transposed else matrix, []))[1].append(v)
    return list(sides.values())


def _least_excess(matrix: Numbers) -> Numbers | None:
    """`[a, b]`: the least that choice a costs more than b, over the neighbour's choices; None for a large matrix."""
    rows, columns = matrix.shape
    if rows * rows * columns > COMPARED:
        return None
    with np.errstate(invalid="ignore"):
        excess = matrix[:, None, :] - matrix[None, :, :]
    excess[np.broadcast_to(np.isinf(matrix)[:, None, :], excess.shape)] = np.inf  # where a is forbidden, b is no worse
    return np.asarray(excess.min(axis=2))
