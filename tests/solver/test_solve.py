"""The solver of sharding problems, against all choices of small ones and the bound on larger ones."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import meshbridge
from benchmarks.iopddl import generated, parsed
from meshbridge.solver import lagrangian_dual as dual_module
from meshbridge.solver import milp
from meshbridge.solver.clock import WALL, Clock, Work
from meshbridge.solver.eliminate import Elimination
from meshbridge.solver.lagrangian_dual import LagrangianDual
from meshbridge.solver.presolve import presolve
from meshbridge.solver.problem import Problem
from meshbridge.solver.solve import LimitError, Solution
from meshbridge.solver.solve import solve as solve_by

INF = float("inf")


def solve(problem: Problem, **more: Any) -> Solution:
    """By a clock that counts work."""
    return solve_by(problem, clock=Work(nodes=1_000), **more)


def best(problem: Problem) -> float:
    """The least cost of all choices, one by one; infinite if none are allowed within the limit."""
    every = itertools.product(*(range(each.size) for each in problem.costs))
    return min((problem.cost(chosen) for chosen in every if problem.peak(chosen) <= problem.limit), default=INF)


def drawn(seed: int, *, scale: float = 1.0, forbidden: float = 0.2) -> Problem:
    """A problem of up to 6 variables with shared matrices, parallel edges, edges with itself, and memory."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    sizes = random.integers(1, 4, count)

    def numbers(*shape: int) -> np.ndarray:
        values = random.integers(0, 6, shape) * scale
        return np.where(random.random(shape) < forbidden, INF, values)

    shared = {(a, b): numbers(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
    edges = []
    for _ in range(int(random.integers(0, 9))):
        i, j = (int(v) for v in random.integers(0, count, 2))
        edges.append((i, j, shared[sizes[i], sizes[j]] if random.random() < 0.5 else numbers(sizes[i], sizes[j])))
    held = tuple(random.integers(0, 5, size).astype(float) for size in sizes)
    begins = random.integers(0, 5, count)
    lifetimes = tuple(
        (int(begin), int(begin + length)) for begin, length in zip(begins, random.integers(0, 4, count), strict=True)
    )
    return Problem(tuple(numbers(size) for size in sizes), tuple(edges), held, lifetimes, float(random.integers(0, 15)))


@given(st.integers(0, 10_000), st.sampled_from([1.0, 1e-6, 1e9]))
def test_the_best_choices_of_small_problems(seed: int, scale: float) -> None:
    problem = drawn(seed, scale=scale)
    expected = best(problem)
    if np.isinf(expected):
        with pytest.raises(meshbridge.MeshError):
            solve(problem, seconds=1)
        return
    found = solve(problem, seconds=5)
    assert found.cost == pytest.approx(expected)
    assert found.cost == problem.cost(found.chosen)
    assert found.peak == problem.peak(found.chosen) <= problem.limit
    assert found.bound <= expected * (1 + 1e-6)
    assert found.gap < 1e-4


@given(st.integers(0, 10_000))
def test_the_normal_form_keeps_the_best_cost(seed: int) -> None:
    problem = drawn(seed)
    form = presolve(problem)
    if form is None:
        assert np.isinf(best(replace(problem, limit=INF)))
        return
    every = [np.array(chosen, dtype=np.int64) for chosen in itertools.product(*(range(size) for size in form.sizes()))]
    allowed = [problem.cost(form.original(chosen)) for chosen in every if problem.peak(form.original(chosen)) <= problem.limit]
    assert min(allowed, default=INF) == best(problem)
    for chosen in every[:50]:
        forbidden, cost = form.cost(chosen)
        expected = problem.cost(form.original(chosen))
        assert (forbidden > 0) == np.isinf(expected)
        assert forbidden or cost == pytest.approx(expected)
        assert form.cost(form.from_original(form.original(chosen))) == form.cost(chosen)
        usage, times = problem.usage(form.original(chosen)), form.steps.times
        assert form.usage(chosen) == pytest.approx(usage[times])


@given(st.integers(0, 10_000), st.sampled_from([1, 6, 1000]))
def test_elimination_is_exact_or_a_bound(seed: int, entries: int) -> None:
    problem = replace(drawn(seed, forbidden=0.1), limit=INF)
    form = presolve(problem)
    if form is None:
        return
    elimination = Elimination(form.offsets, form.edges, entries, range(form.count))
    bound, chosen = elimination.run(form.costs)
    if elimination.exact:
        assert bound == pytest.approx(best(problem)) or (np.isinf(bound) and np.isinf(best(problem)))
        assert problem.cost(form.original(chosen)) == pytest.approx(best(problem)) or np.isinf(bound)
    else:
        assert bound <= best(problem) * (1 + 1e-9)


@given(st.integers(0, 10_000))
def test_the_dual_never_passes_the_best_cost(seed: int) -> None:
    problem = drawn(seed, forbidden=0.1)
    form = presolve(problem)
    if form is None:
        return
    dual = LagrangianDual(form)
    for _ in range(20):
        dual.round()
        assert dual.bound <= best(problem) * (1 + 1e-9)


def test_messages_are_exact_on_chains() -> None:
    random = np.random.default_rng(3)
    edges = tuple((v, v + 1, random.random((4, 4))) for v in range(9))
    ring = (*edges[:3], (0, 9, edges[0][2]))  # two chains that end at 0's neighbours: no leaf of what is left has one neighbour
    for pairs in (edges, ring):
        problem = Problem(tuple(random.random(4) for _ in range(10)), pairs)
        found = solve(problem, seconds=5)
        assert found.gap < 1e-9


def test_more_variables_than_all_choices_can_be_tried() -> None:
    problem = generated(24)
    form = presolve(problem)
    assert form is not None
    chosen, bound = milp.solve_milp(form, 3600, 1e4)
    assert chosen is not None
    optimum = problem.cost(form.original(chosen))
    assert bound == pytest.approx(optimum, rel=1e-4)
    found = solve(problem, seconds=4)
    assert optimum * (1 - 1e-6) <= found.cost <= optimum * 1.05
    assert found.bound <= optimum * (1 + 1e-6)


def test_a_limit_that_nothing_meets_says_by_how_much_and_when() -> None:
    problem = Problem((np.zeros(2), np.zeros(1)), (), (np.array([3.0, 2.0]), np.array([4.0])), ((0, 5), (3, 6)), 5.0)
    with pytest.raises(LimitError, match="even the smallest choices hold 6 bytes at time 3, 1 more than the limit of 5") as error:
        solve(problem)
    assert (error.value.peak, error.value.time) == (6.0, 3)


def test_choices_that_are_not_allowed_together() -> None:
    never = np.full((2, 2), INF)
    with pytest.raises(meshbridge.MeshError, match="no choices are allowed together"):
        solve(Problem((np.zeros(2), np.zeros(2)), ((0, 1, never),)))


def test_starts_are_never_made_worse() -> None:
    problem = generated(12)
    start = [costs.size - 1 for costs in problem.costs]  # the fewest bytes, and allowed with everything
    first = solve(problem, seconds=0.2, starts=[start])
    again = solve(problem, seconds=0.2, starts=[first.chosen])
    assert again.cost <= first.cost <= problem.cost(start)
    with pytest.raises(meshbridge.MeshError, match="start 0: expected one of its choices for each of 12 variables"):
        solve(problem, starts=[[0]])


def test_an_interruption_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = generated(90)
    start = [costs.size - 1 for costs in problem.costs]  # the fewest bytes, and allowed with everything

    def interrupted(self: LagrangianDual) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dual_module.LagrangianDual, "round", interrupted)
    solution = solve(problem, starts=[start])
    assert solution.cost == problem.cost(start)
    assert solution.is_interrupted
    monkeypatch.undo()
    assert not solve(problem, starts=[start], seconds=0.1).is_interrupted


def test_the_same_answer_in_each_run() -> None:
    problem = drawn(7, forbidden=0.0)
    assert solve(problem) == solve(problem)


@pytest.mark.parametrize(
    ("clock", "limit"), [(Work(nodes=7), {"node_limit": 7}), (WALL, {"time_limit": pytest.approx(2, abs=2)})]
)
def test_where_work_is_counted_no_other_clock_ends_the_solver(clock: Clock, limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    milp = optimize.milp
    monkeypatch.setattr(optimize, "milp", lambda *rest, options, **more: (given.append(options), milp(*rest, **more))[1])
    solve_by(generated(12), seconds=4, clock=clock)
    assert [{name: value for name, value in options.items() if name.endswith("limit")} for options in given] == [limit]


def test_progress_tells_cost_and_bound() -> None:
    told: list[tuple[float, float]] = []
    found = solve(generated(30), seconds=1, progress=lambda cost, bound: told.append((cost, bound)))
    assert told[-1][0] == found.cost
    assert all(bound <= cost for cost, bound in told)


def test_nothing_to_choose() -> None:
    assert solve(Problem(())).chosen == ()
    assert solve(Problem((np.array([2.0]),))).cost == 2.0


@pytest.mark.parametrize(
    ("costs", "edges", "text"),
    [
        ((np.zeros(0),), (), "variable 0: expected float64 of shape"),
        ((np.array([-1.0]),), (), "variable 0: expected numbers of at least 0, found -1.0"),
        ((np.array([np.nan]),), (), "variable 0: expected numbers of at least 0, found nan"),
        ((np.zeros(1),), ((0, 1, np.zeros((1, 1))),), r"edge \(0, 1\): expected two of the variables 0 to 0"),
        (
            (np.zeros(1), np.zeros(2)),
            ((0, 1, np.zeros((2, 1))),),
            r"edge \(0, 1\): expected a matrix of shape \(1, 2\), found \(2, 1\)",
        ),
    ],
)
def test_parts_that_do_not_fit(costs: tuple[np.ndarray, ...], edges: tuple, text: str) -> None:
    with pytest.raises(meshbridge.MeshError, match=text):
        Problem(costs, edges)


def test_the_example_of_the_contest() -> None:
    text = """{"nodes": {"intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
        "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]], "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]]},
        "edges": {"nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
        "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]]}, "usage_limit": 50}"""
    problem = parsed(json.loads(text))
    found = solve(problem)
    assert found.cost == best(problem) == found.bound
    assert found.peak <= 50
