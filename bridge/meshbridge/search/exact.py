"""Small problems as integer programs, which HiGHS solves: the best choices, or a better bound than messages give.

SciPy, which brings HiGHS, is imported where there is a problem to solve: it takes half a second, and every command of
`meshbridge` imports this module.
"""

from __future__ import annotations

import numpy as np

from meshbridge.search.normal import Normal
from meshbridge.search.problem import Indices, Numbers

COLUMNS = 30_000
"""Problems of more choices and allowed pairs than this are not small. Not measured against others."""


HELD = 1_000_000
"""Problems are not small where more bytes than this count, once for each step: on IOPDDL's P, where 2e8 do, HiGHS took 45 s more
than it was given. Those of B, G and V, of 4e4 to 9e4, it solves."""


def small(normal: Normal) -> bool:
    """Whether HiGHS can do something with the problem in seconds."""
    memory = normal.memory
    held = int((np.diff(normal.offsets)[memory.owners] * (memory.steps.last - memory.steps.first)).sum())
    return columns(normal) <= COLUMNS and held <= HELD


def columns(normal: Normal) -> int:
    """Choices and allowed pairs of choices."""
    return int(normal.costs.size + sum(int(np.isfinite(matrix).sum()) for matrix in normal.edges.values()))


def solved(
    normal: Normal, seconds: float, scale: float, limits: Numbers | None = None, nodes: int | None = None
) -> tuple[Indices | None, float]:
    """The best choices that HiGHS finds in so many seconds, or nodes if these are given, if any; and a bound on the cost.

    `scale` is about the best cost: HiGHS' tolerances are absolute. `limits`, by step, stand for the one of the problem.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    scale = scale if scale > 0 else 1.0
    each = normal.limit - normal.memory.base if limits is None else limits
    costs, rows, cells, weights, upper, lower = _program(normal, each)
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
    taken = result.x[: normal.costs.size]
    return np.array([taken[a:b].argmax() for a, b in zip(normal.offsets[:-1], normal.offsets[1:], strict=True)]), bound


def _program(normal: Normal, limits: Numbers) -> tuple[Numbers, Indices, Indices, Numbers, Numbers, Numbers]:
    """Costs by column; rows, columns and weights of the constraints; their upper and lower limits.

    A column for each choice and each allowed pair of choices. Of each variable one choice is taken; of an edge, the pairs of a
    choice are taken as often as the choice; at no step more is held than the limit.
    """
    costs = [normal.costs]
    rows, cells, weights = [normal.owners], [np.arange(normal.costs.size)], [np.ones(normal.costs.size)]
    upper = [np.ones(normal.count)]
    column, row = normal.costs.size, normal.count
    for (i, j), matrix in normal.edges.items():
        first, second = np.nonzero(np.isfinite(matrix))
        pairs = np.arange(first.size) + column
        costs.append(matrix[first, second])
        for taken, v in ((first, i), (second, j)):
            size = int(normal.offsets[v + 1] - normal.offsets[v])
            rows += [row + taken, row + np.arange(size)]
            cells += [pairs, normal.offsets[v] + np.arange(size)]
            weights += [np.ones(taken.size), -np.ones(size)]
            upper.append(np.zeros(size))
            row += size
        column += first.size
    lower = [*upper]
    memory, steps = normal.memory, normal.steps
    choices, holders = memory.numbers
    for step in range(steps.times.size):
        alive = ((steps.first <= step) & (step < steps.last))[holders]
        rows.append(np.full(int(alive.sum()), row + step))
        cells.append(choices[alive])
        weights.append(memory.held[alive] / normal.unit)
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
