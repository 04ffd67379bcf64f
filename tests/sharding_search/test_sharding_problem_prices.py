"""Prices of the search agree with the predicted step where they once did not."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshbridge
from meshbridge.decide.graph import Tensor
from meshbridge.sharding_search import mesh_search
from meshbridge.sharding_search.boundary import ends
from meshbridge.sharding_search.clock import Work
from meshbridge.sharding_search.sharding_problem import ShardingProblem
from meshbridge.solver.solve import Solution, solve
from testdata.realistic.catalogue import build


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_a_product_pays_for_cutting_a_weight_that_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as a kernel takes that reads the part and writes it."""
    seen: list[float] = []

    def spied(sought: mesh_search.MeshSearch) -> list[Tensor]:
        free = sought.free
        tensors = list(free.folded.tensors)
        (rows, weight), (result,) = ([free.standing_for[index] for index in side] for side in ends(free.graph))
        tensors[rows] = tensors[rows].with_split(((), ()))
        tensors[result] = tensors[result].with_split(((), (0,)))
        prices = []
        for split in ((), ()), ((), (0,)):
            tensors[weight] = tensors[weight].with_split(split)
            prices.append(free.priced(tensors, sought.pricing).total)
        whole, parts = prices
        work = sought.costs.work
        assert work is not None
        seen.append((whole - parts) / (2 * work.byte * 4 * 1024 * 4096 / 8))
        return tensors

    monkeypatch.setattr(mesh_search.MeshSearch, "relaxed", spied)
    meshbridge.search(jax.jit(lambda x, w: x @ w), f32(8, 1024), f32(1024, 4096), mesh={"x": 8}, machine="v5p", seconds=0.1)
    assert seen == [pytest.approx(1.0)]


@pytest.mark.slow
def test_the_relaxed_problem_of_a_decoding_step_is_solved_by_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals have several readers, of which one is another layer's; weights are whole nowhere."""
    seen: list[tuple[Solution, float]] = []

    def spied(sought: mesh_search.MeshSearch) -> list[Tensor]:
        relaxed = ShardingProblem(replace(sought.free.folded, pricing=sought.pricing), sought.pricing, sought.free.axes)
        solution = solve(relaxed.problem(), seconds=60.0, clock=Work())
        tensors = relaxed.tensors(solution.chosen)
        seen.append((solution, sought.free.priced(tensors, sought.pricing).total))
        return tensors

    monkeypatch.setattr(mesh_search.MeshSearch, "relaxed", spied)
    exported = build("decode_heads", "constrained", 8).export()
    meshbridge.search(exported, machine="h100", keep_annotations=False, seconds=0.1)
    ((solution, priced),) = seen
    assert solution.cost == pytest.approx(priced)
    assert solution.gap < 0.01


def test_plans_are_tried_in_one_way_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    attempt = mesh_search.attempt

    def spied(*arguments: Any) -> Any:
        tried.append(arguments[-1])
        return attempt(*arguments)

    monkeypatch.setattr(mesh_search, "attempt", spied)
    meshbridge.search(jax.jit(lambda x, w: jnp.tanh(x @ w)), f32(512, 1024), f32(1024, 4096), mesh="4x2", machine="v5p")
    first, second, *others = [way for way in tried if way is not None]
    assert first != second
    assert {*others} == {first, second}
    assert [way for way, _ in groupby(others)] in ([first, second], [second, first])
    assert None in tried


def test_a_plan_that_cannot_be_given_as_a_whole_is_given_as_it_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    attempt, planned = mesh_search.attempt, mesh_search.planned

    def in_the_second_way(*arguments: Any) -> Any:
        way = arguments[-1]
        return attempt(*arguments) if way is not None and way.hides else None

    def spied(*arguments: Any) -> Any:
        given.append(arguments[-1])
        return planned(*arguments)

    monkeypatch.setattr(mesh_search, "attempt", in_the_second_way)
    monkeypatch.setattr(mesh_search, "planned", spied)
    meshbridge.search(jax.jit(lambda x, w: jnp.tanh(x @ w)), f32(512, 1024), f32(1024, 4096), mesh="4x2", machine="v5p")
    (way,) = given
    assert way is not None
    assert way.hides
