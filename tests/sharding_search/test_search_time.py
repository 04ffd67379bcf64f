"""A search ends in time, whatever a trial takes: its clock is one that trials advance."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.sharding_search import clock as clocks
from meshbridge.sharding_search import constraints, mesh_search
from meshbridge.solver import clock as solver_clock
from meshbridge.solver.problem import Problem
from meshbridge.solver.solve import Solution, solve


@dataclass
class Clock:
    """Seconds that pass where something is tried, and not otherwise."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, function: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            self.now += seconds(*arguments, **more)
            return function(*arguments, **more)

        return timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A trial takes 1 s, a plan as users get it 3 s, and the solver what it is given."""
    found = Clock()
    monkeypatch.setattr(clocks, "usual", lambda: found)
    monkeypatch.setattr(
        mesh_search, "attempt", found.taking(mesh_search.attempt, lambda *arguments: 1.0 if arguments[-1] else 3.0)
    )
    monkeypatch.setattr(mesh_search, "solve", found.taking(solved, lambda *_, seconds, **__: seconds))
    monkeypatch.setattr(constraints, "predict", found.taking(constraints.predict, lambda *_: 1.0))
    return found


def solved(problem: Problem, **_: Any) -> Solution:
    """With the same time, whatever the clock says."""
    return solve(problem, seconds=4.0, clock=clocks.Work())


def loss(params: list[dict[str, Any]], x: Any) -> Any:
    for layer in params:
        scores = (x @ layer["q"]) @ (x @ layer["k"]).T
        x = x + jax.nn.softmax(scores) @ x
    return jnp.mean(x**2)


def step(params: list[dict[str, Any]], x: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def find(seconds: float, **more: Any) -> meshbridge.SearchedPlan:
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    params = [{"q": f32(1024, 1024), "k": f32(1024, 1024)} for _ in range(2)]
    fixed = {"x": P("data"), "params/**": P("data")}
    more = {"mesh": {"data": 8}, "machine": "v5p", "fixed": fixed} | more
    return meshbridge.search(jax.jit(step), params, f32(4096, 1024), seconds=seconds, **more)


def test_there_is_one_clock() -> None:
    """What a search finds hangs on the one that it is given."""
    folders = [Path(package.__file__).parent for package in (clocks, solver_clock)]
    files = [path for folder in folders for path in folder.glob("*.py")]
    assert [path for path in files if re.search(r"^(import|from) time\b", path.read_text(), re.M)] == [
        Path(solver_clock.__file__)
    ]


@pytest.mark.parametrize("seconds", [6.0, 20.0])
def test_a_search_ends_within_its_seconds(clock: Clock, seconds: float) -> None:
    plan = find(seconds)
    assert clock.now <= seconds
    assert plan.tried > 0
    assert 0 < plan.bound_seconds <= plan.seconds


def test_with_no_time_at_all_there_is_one_plan_as_users_get_it(clock: Clock) -> None:
    plan = find(0.001)
    assert plan.tried == 1
    assert clock.now <= 1 + 3 + 0.001


def test_a_program_of_which_a_trial_takes_most_of_the_time_is_tried_once(clock: Clock) -> None:
    """A second trial would leave no time for the plan as users get it."""
    plan = find(4.5)
    assert plan.tried == 1
    assert clock.now <= 4.5


def test_the_fastest_plan_is_given_though_its_trial_took_all_the_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the annotations alone give, which is partitioned as users get it before."""
    tried: list[float] = []
    monkeypatch.setattr(
        mesh_search, "attempt", clock.taking(mesh_search.attempt, lambda *arguments: 30.0 if arguments[-1] else 0.0)
    )
    plan = find(20.0, fixed={"params/*/q": P()}, on_trial=lambda trial, number: tried.append(trial.seconds))
    assert clock.now > 20
    assert plan.seconds < 0.9 * tried[0]


@pytest.mark.slow
def test_several_meshes_share_the_seconds(clock: Clock) -> None:
    find(24.0, mesh="8", fixed={})
    assert clock.now <= 24


@pytest.mark.parametrize("most", [1, 20])
def test_constraints_take_as_long_again_at_most(clock: Clock, most: int) -> None:
    plan = find(10.0, constraints=most)
    assert clock.now <= 20
    assert len(plan.constraints) == 1
