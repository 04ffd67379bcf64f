"""The parts of the solver, each against all choices of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.iopddl import generated
from meshbridge.solver import cutset as cutset_module
from meshbridge.solver import lagrangian_dual as dual_module
from meshbridge.solver.cutset import Cutsets
from meshbridge.solver.degree_one import DegreeOne
from meshbridge.solver.initial_choices import initial_choices
from meshbridge.solver.lagrangian_dual import LagrangianDual
from meshbridge.solver.memory_profile import MemoryProfile
from meshbridge.solver.neighbourhood_search import NeighbourhoodSearch
from meshbridge.solver.presolve import Presolved, presolve
from meshbridge.solver.problem import Problem
from meshbridge.solver.trws import TRWS

INF = float("inf")


def drawn(seed: int, count: int = 6) -> Problem:
    """Variables of up to 3 choices, most pairs with an edge, and no memory; the last choices are allowed with everything."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 4, count)
    edges = []
    for i, j in itertools.combinations(range(count), 2):
        if random.random() < 0.7:
            matrix = random.integers(0, 9, (sizes[i], sizes[j])).astype(float)
            matrix[:-1, :-1][random.random((sizes[i] - 1, sizes[j] - 1)) < 0.3] = INF
            edges.append((i, j, matrix))
    return Problem(tuple(random.integers(0, 9, size).astype(float) for size in sizes), tuple(edges))


def formed(problem: Problem) -> Presolved:
    form = presolve(problem)
    assert form is not None
    return form


def every(form: Presolved) -> list[np.ndarray]:
    return [np.array(choices, dtype=np.int64) for choices in itertools.product(*(range(size) for size in form.sizes()))]


@given(st.integers(0, 10_000))
def test_costs_in_the_normal_form_are_those_of_the_problem(seed: int) -> None:
    problem = drawn(seed)
    form = formed(problem)
    for chosen in every(form)[:50]:
        forbidden, cost = form.cost(chosen)
        expected = problem.cost(form.original(chosen))
        assert (forbidden > 0) == np.isinf(expected)
        assert forbidden or cost == pytest.approx(expected)
        assert cost <= form.forbidding


@given(st.integers(0, 10_000), st.sampled_from([4, 30, 100_000]))
def test_all_variables_but_a_cutset_take_their_best_choices(seed: int, entries: int) -> None:
    form = formed(drawn(seed))
    every_one = every(form)
    best = min(form.cost(chosen) for chosen in every_one)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cutset_module, "ENTRIES", entries)
        cutsets = Cutsets(form, DegreeOne(form.offsets, form.edges, range(form.count)))
        chosen = every_one[seed % len(every_one)]
        for turn in range(2 * cutset_module.CUTSETS):
            after = cutsets.improved(chosen, form.costs, turn)
            assert form.cost(after) <= (form.cost(chosen)[0], form.cost(chosen)[1] + 1e-9)
            chosen = after
    if entries == 100_000:  # nothing is held
        assert form.cost(chosen) == (0, pytest.approx(best[1]))


def test_a_cutset_holds_some_variables_and_later_ones_hold_others() -> None:
    form = formed(drawn(5, count=24))
    pairs = list(form.edges)
    times_held, random = np.zeros(form.count), np.random.default_rng(0)
    variables = sorted({v for pair in pairs for v in pair})
    first = cutset_module.cutset(variables, pairs, np.full(form.count, 50), times_held, random)
    times_held[sorted(first)] += 1
    second = cutset_module.cutset(variables, pairs, np.full(form.count, 50), times_held, random)
    assert first
    assert second - first
    assert set(variables) - first


@given(st.integers(0, 10_000))
def test_messages_bound_all_choices_and_decide_trees(seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = tuple(random.random(3) for _ in range(7))
    tree = tuple((int(random.integers(0, v)), v, random.random((3, 3))) for v in range(1, 7))
    problem = Problem(costs, tree)
    offsets = np.arange(0, 24, 3)
    flat = np.concatenate(costs)
    messages = TRWS(offsets, {(i, j): matrix for i, j, matrix in tree})
    bounds = [messages.sweep(flat) for _ in range(200)]
    least = min(problem.cost(chosen) for chosen in itertools.product(range(3), repeat=7))
    assert all(before <= after + 1e-9 for before, after in itertools.pairwise(bounds))
    assert bounds[-1] == pytest.approx(least)
    totals = messages.totals(flat)
    assert problem.cost(totals.reshape(7, 3).argmin(axis=1).tolist()) == pytest.approx(least)


@given(st.integers(0, 10_000))
def test_what_messages_leave_of_costs_and_tables_sums_up_as_they_do(seed: int) -> None:
    form = formed(drawn(seed))
    messages = TRWS(form.offsets, form.edges)
    for _ in range(3):
        messages.sweep(form.costs)
    left = replace(form, costs=messages.totals(form.costs), edges=messages.tables())
    for chosen in every(form)[:50]:
        forbidden, cost = form.cost(chosen)
        assert left.cost(chosen) == (forbidden, pytest.approx(cost)) or forbidden


@given(st.integers(0, 10_000), st.sampled_from([1, 6, 1000]))
def test_elimination_of_what_messages_leave_is_exact_or_a_bound(seed: int, entries: int) -> None:
    form = formed(drawn(seed))
    least = min(cost for forbidden, cost in map(form.cost, every(form)) if not forbidden)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual_module, "ENTRIES", entries)
        dual = LagrangianDual(form)
        for _ in range(3):
            dual.round()
        bound, chosen = dual.decided(form.costs)
    assert bound <= least + 1e-9 * (1 + least)
    if entries == 1000:  # all tables fit
        assert bound == pytest.approx(least)
        assert form.cost(chosen) == (0, pytest.approx(least))


def test_the_bound_rises_while_what_is_held_swings() -> None:
    dual = LagrangianDual(formed(generated(300)))
    dual.round()
    first = dual.bound
    for _ in range(10):
        dual.round()
    assert dual.bound > 1.05 * first


def test_edges_that_share_a_large_table_are_not_copied() -> None:
    random = np.random.default_rng(1)
    table = random.random((70, 70))
    edges = {(0, v): table for v in range(1, 6)}
    messages = TRWS(np.arange(0, 7 * 70, 70), edges)
    assert all(batch.tables.base is not None and batch.tables.shape == (70, 70, 1) for batch in messages._forward)
    costs = random.random(6 * 70)
    least = (costs[:70] + sum((table + costs[70 * v : 70 * v + 70]).min(axis=1) for v in range(1, 6))).min()
    assert max(messages.sweep(costs) for _ in range(300)) == pytest.approx(least)


@given(st.integers(0, 10_000))
def test_the_highest_of_the_steps_at_which_each_lives(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(-9, 9, int(random.integers(0, 12))).astype(float)
    first = random.integers(0, numbers.size + 1, 8)
    last = np.array([random.integers(begin, numbers.size + 1) for begin in first])
    found = MemoryProfile(first, last, np.arange(numbers.size)).highest(numbers)
    assert found.tolist() == [numbers[a:b].max(initial=-INF) for a, b in zip(first, last, strict=True)]


def tied(seed: int) -> Problem:
    """Two chains of variables, all of a chain tied in drawn orders, with an edge between each two that are alike, and memory."""
    random = np.random.default_rng(seed)
    size, length = 3, 5
    edges = []
    for v in range(2 * length):
        if v % length:
            matrix = np.full((size, size), INF)
            matrix[np.arange(size), random.permutation(size)] = random.integers(0, 5, size)
            edges.append((v - 1, v, matrix) if random.random() < 0.5 else (v, v - 1, matrix.T.copy()))
    edges += [(v, v + length, random.integers(0, 9, (size, size)).astype(float)) for v in range(length)]
    costs = tuple(random.integers(0, 9, size).astype(float) for _ in range(2 * length))
    held = tuple(random.integers(0, 5, size).astype(float) for _ in range(2 * length))
    lifetimes = tuple((v % length, v % length + int(random.integers(1, 4))) for v in range(2 * length))
    return Problem(costs, tuple(edges), held, lifetimes, 11.0)


@given(st.integers(0, 10_000))
def test_tied_variables_are_one_variable(seed: int) -> None:
    problem = tied(seed)
    form = formed(problem)
    assert int((form.sizes() > 1).sum()) <= 2
    for chosen in every(form):
        assert form.cost(chosen) == (0, pytest.approx(problem.cost(form.original(chosen))))
        assert form.usage(chosen) == pytest.approx(problem.usage(form.original(chosen))[form.steps.times])
        fits = problem.peak(form.original(chosen)) <= problem.limit
        assert fits == bool((form.usage(chosen) <= form.limit).all())


def test_ties_that_contradict_each_other_allow_nothing() -> None:
    same, other = np.where(np.eye(2) > 0, 0.0, INF), np.where(np.eye(2) > 0, INF, 0.0)
    assert presolve(Problem((np.zeros(2),) * 3, ((0, 1, same), (1, 2, same), (0, 2, other)))) is None


def test_of_steps_at_which_the_same_choices_hold_the_same_one_is_left() -> None:
    held = (np.array([1.0, 5.0]), np.array([1.0, 5.0]), np.array([2.0]), np.array([3.0]))
    same = np.where(np.eye(2) > 0, 0.0, INF)
    problem = Problem((np.zeros(2),) * 2 + (np.zeros(1),) * 2, ((0, 1, same),), held, ((0, 1), (1, 2), (0, 1), (1, 2)), 7.0)
    form = formed(replace(problem, costs=(np.array([9.0, 1.0]), *problem.costs[1:])))
    assert form.steps.times.tolist() == [1]
    assert [form.usage(np.append(choice, form.sizes()[1:] - 1)).tolist() for choice in (0, 1)] == [[4.0], [8.0]]


def test_choices_above_the_limit_are_repaired_and_then_get_better() -> None:
    form = formed(generated(90))
    dual = LagrangianDual(form)
    dual.round()  # no prices yet: what costs least is above the limit
    above = next(iter(initial_choices(dual)))
    assert form.usage(above).max() > form.limit
    improver = NeighbourhoodSearch(dual, above)
    costs = []
    for _ in range(1000):
        improver.attempt()
        cost, chosen = improver.best
        if np.isfinite(cost):
            assert form.cost(chosen) == (0, pytest.approx(cost))
            assert form.usage(chosen).max() <= form.limit
            costs.append(cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


def test_choices_swing_above_the_limit_and_back() -> None:
    form = formed(generated(90))
    dual = LagrangianDual(form)
    for _ in range(20):
        dual.round()
    improver = NeighbourhoodSearch(dual, next(iter(initial_choices(dual))))
    within = []
    for _ in range(1000):
        improver.attempt()
        within.append(bool((form.usage(improver.chosen) <= form.limit).all()))
    turns = [before for before, after in itertools.pairwise(within) if before != after]
    assert turns.count(True) >= 2  # above it
    assert turns.count(False) >= 2  # and back


@given(st.integers(0, 10_000))
def test_parts_of_a_region_are_taken_that_cost_less_and_fit(seed: int) -> None:
    form = formed(generated(30))
    held = form.memory.priced(np.zeros(form.costs.size), np.ones(form.memory.owners.size))
    smallest = np.array([held[a:b].argmin() for a, b in itertools.pairwise(form.offsets)])
    random = np.random.default_rng(seed)
    other = np.where(random.random(form.count) < 0.3, random.integers(0, form.sizes()), smallest)
    improver = NeighbourhoodSearch(LagrangianDual(form), smallest)
    improver._merge(other, np.flatnonzero(other != smallest))
    found = improver.chosen
    assert (form.usage(found) <= form.limit).all()
    assert form.cost(found) <= form.cost(smallest)
    assert improver.cost == pytest.approx(form.cost(found)[1])
    assert ((found == other) | (found == smallest)).all()


def test_variables_without_edges_get_better_too() -> None:
    problem = Problem((np.array([5.0, 1.0]), np.array([7.0, 2.0])), (), (np.array([1.0, 2.0]),) * 2, ((0, 1),) * 2, 3.0)
    form = formed(problem)
    improver = NeighbourhoodSearch(LagrangianDual(form), np.zeros(2, dtype=np.int64))
    improver._merge(np.ones(2, dtype=np.int64), np.arange(2))
    assert form.original(improver.chosen) == (0, 1)  # both would not fit
    assert improver.cost == 7.0
