"""Small problems as mixed-integer programs, which HiGHS solves: the best choices, or a better bound than that of the messages.

SciPy, which brings HiGHS, is imported only to solve a problem: the import takes half a second, and every command of `meshbridge`
imports this module.
"""

from __future__ import annotations

import numpy as np

from meshbridge.search.normal import Normal
from meshbridge.search.problem import Indices, Numbers

COLUMNS = 30_000
"""The most choices and allowed pairs of a small problem. Not measured against others."""


BYTE_TERMS = 1_000_000
"""The most byte counts of a small problem, each counted once per step: on IOPDDL's P, which has 2e8, HiGHS took 45 s longer than
allowed. It solves B, G and V, which have 4e4 to 9e4."""


def small(normal: Normal) -> bool:
    """Whether HiGHS can help with the problem within seconds."""
    memory = normal.memory
    byte_terms = int((np.diff(normal.offsets)[memory.owners] * (memory.steps.stops - memory.steps.starts)).sum())
    return columns(normal) <= COLUMNS and byte_terms <= BYTE_TERMS


def columns(normal: Normal) -> int:
    """The number of choices and of allowed pairs of choices."""
    return int(normal.costs.size + sum(int(np.isfinite(matrix).sum()) for matrix in normal.edges.values()))


def solved(
    normal: Normal, seconds: float, scale: float, limits: Numbers | None = None, nodes: int | None = None
) -> tuple[Indices | None, float]:
    """The best choices that HiGHS finds in so many seconds, or nodes if given, if it finds any; and a bound on the cost.

    `scale` is about the best cost, since HiGHS' tolerances are absolute. `limits`, one per step, replace the limit of the
    problem.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    scale = scale if scale > 0 else 1.0
    step_limits = normal.limit - normal.memory.base if limits is None else limits
    costs, rows, cells, weights, upper, lower = _program(normal, step_limits)
    allowed = np.isfinite(costs)
    matrix = coo_array((weights, (rows, cells)), shape=(len(upper), costs.size)).tocsr()
    integrality = np.zeros(costs.size)
    integrality[: normal.costs.size] = 1
    result = milp(
        np.where(allowed, costs / scale * 1e3, 0.0),
        integrality=integrality,
        bounds=Bounds(0, allowed.astype(np.float64)),
        constraints=LinearConstraint(matrix, lower, upper),
        options={"mip_rel_gap": 1e-7} | ({"time_limit": max(0.1, seconds)} if nodes is None else {"node_limit": nodes}),
    )
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) * scale / 1e3
    if result.x is None:
        return None, bound
    selected = result.x[: normal.costs.size]
    return np.array([selected[a:b].argmax() for a, b in zip(normal.offsets[:-1], normal.offsets[1:], strict=True)]), bound


def _program(normal: Normal, limits: Numbers) -> tuple[Numbers, Indices, Indices, Numbers, Numbers, Numbers]:
    """Costs by column; rows, columns and weights of the constraints; their upper and lower limits.

    There is a column for each choice and each allowed pair of choices. A variable takes one choice; an edge takes the pairs of a
    choice as often as that choice; no step holds more than the limit.
    """
    costs = [normal.costs]
    rows, cells, weights = [normal.owners], [np.arange(normal.costs.size)], [np.ones(normal.costs.size)]
    upper = [np.ones(normal.count)]
    column, row = normal.costs.size, normal.count
    for (i, j), matrix in normal.edges.items():
        row_choices, column_choices = np.nonzero(np.isfinite(matrix))
        pairs = np.arange(row_choices.size) + column
        costs.append(matrix[row_choices, column_choices])
        for selected, v in ((row_choices, i), (column_choices, j)):
            size = int(normal.offsets[v + 1] - normal.offsets[v])
            rows += [row + selected, row + np.arange(size)]
            cells += [pairs, normal.offsets[v] + np.arange(size)]
            weights += [np.ones(selected.size), -np.ones(size)]
            upper.append(np.zeros(size))
            row += size
        column += row_choices.size
    lower = [*upper]
    memory, steps = normal.memory, normal.steps
    choice_of, holders = memory.numbers
    for step in range(steps.times.size):
        alive = ((steps.starts <= step) & (step < steps.stops))[holders]
        rows.append(np.full(int(alive.sum()), row + step))
        cells.append(choice_of[alive])
        weights.append(memory.sizes[alive] / normal.unit)
    upper.append(limits / normal.unit if np.isfinite(normal.unit) else limits)
    lower.append(np.full(steps.times.size, -np.inf))
    return (
        np.concatenate(costs),
        np.concatenate(rows),
        np.concatenate(cells),
        np.concatenate(weights),
        np.concatenate(upper),
        np.concatenate(lower),
    )
