"""Small problems as mixed-integer programs, which HiGHS solves: the best choices, or a better bound than that of the messages.

SciPy, which brings HiGHS, is imported only to solve a problem: the import takes half a second, and every command of `meshbridge`
imports this module.
"""

from __future__ import annotations

import numpy as np

from meshbridge.solver.presolve import Presolved
from meshbridge.solver.problem import Indices, Numbers

COLUMNS = 30_000
"""The most choices and allowed pairs of a small problem. Not measured against others."""


BYTE_TERMS = 1_000_000
"""The most byte counts of a small problem, each counted once per step: on IOPDDL's P, which has 2e8, HiGHS took 45 s longer than
allowed. It solves B, G and V, which have 4e4 to 9e4."""


def is_small(presolved: Presolved) -> bool:
    """Whether HiGHS can help with the problem within seconds."""
    memory = presolved.memory
    byte_terms = int((np.diff(presolved.offsets)[memory.owners] * (memory.steps.stops - memory.steps.starts)).sum())
    return columns(presolved) <= COLUMNS and byte_terms <= BYTE_TERMS


def columns(presolved: Presolved) -> int:
    """The number of choices and of allowed pairs of choices."""
    return int(presolved.costs.size + sum(int(np.isfinite(matrix).sum()) for matrix in presolved.edges.values()))


def solve_milp(
    presolved: Presolved, seconds: float, scale: float, limits: Numbers | None = None, nodes: int | None = None
) -> tuple[Indices | None, float]:
    """The best choices that HiGHS finds in so many seconds, or nodes if given, if it finds any; and a bound on the cost.

    `scale` is about the best cost, since HiGHS' tolerances are absolute. `limits`, one per step, replace the limit of the
    problem.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    scale = scale if scale > 0 else 1.0
    step_limits = presolved.limit - presolved.memory.base if limits is None else limits
    costs, rows, cells, weights, upper, lower = _program(presolved, step_limits)
    allowed = np.isfinite(costs)
    matrix = coo_array((weights, (rows, cells)), shape=(len(upper), costs.size)).tocsr()
    integrality = np.zeros(costs.size)
    integrality[: presolved.costs.size] = 1
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
    selected = result.x[: presolved.costs.size]
    return np.array([selected[a:b].argmax() for a, b in zip(presolved.offsets[:-1], presolved.offsets[1:], strict=True)]), bound


def _program(presolved: Presolved, limits: Numbers) -> tuple[Numbers, Indices, Indices, Numbers, Numbers, Numbers]:
    """Costs by column; rows, columns and weights of the constraints; their upper and lower limits.

    There is a column for each choice and each allowed pair of choices. A variable takes one choice; an edge takes the pairs of a
    choice as often as that choice; no step holds more than the limit.
    """
    costs = [presolved.costs]
    rows, cells, weights = [presolved.owners], [np.arange(presolved.costs.size)], [np.ones(presolved.costs.size)]
    upper = [np.ones(presolved.count)]
    column, row = presolved.costs.size, presolved.count
    for (i, j), matrix in presolved.edges.items():
        row_choices, column_choices = np.nonzero(np.isfinite(matrix))
        pairs = np.arange(row_choices.size) + column
        costs.append(matrix[row_choices, column_choices])
        for selected, v in ((row_choices, i), (column_choices, j)):
            size = int(presolved.offsets[v + 1] - presolved.offsets[v])
            rows += [row + selected, row + np.arange(size)]
            cells += [pairs, presolved.offsets[v] + np.arange(size)]
            weights += [np.ones(selected.size), -np.ones(size)]
            upper.append(np.zeros(size))
            row += size
        column += row_choices.size
    lower = [*upper]
    memory, steps = presolved.memory, presolved.steps
    choice_of, holders = memory.numbers
    for step in range(steps.times.size):
        alive = ((steps.starts <= step) & (step < steps.stops))[holders]
        rows.append(np.full(int(alive.sum()), row + step))
        cells.append(choice_of[alive])
        weights.append(memory.sizes[alive] / presolved.unit)
    upper.append(limits / presolved.unit if np.isfinite(presolved.unit) else limits)
    lower.append(np.full(steps.times.size, -np.inf))
    return (
        np.concatenate(costs),
        np.concatenate(rows),
        np.concatenate(cells),
        np.concatenate(weights),
        np.concatenate(upper),
        np.concatenate(lower),
    )
