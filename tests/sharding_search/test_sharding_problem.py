"""The bound of the sharding problem: no plan that a search meets costs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.decide.graph import Tensor
from meshbridge.sharding_search import mesh_search
from meshbridge.sharding_search.clock import Work
from meshbridge.sharding_search.sharding_problem import Form, ShardingProblem
from meshbridge.sharding_search.trial import Trial
from meshbridge.solver.solve import solve
from testdata.catalogue import build


@pytest.mark.parametrize("name", ["mlp_ws2d", "vocab_ce", "graph", "cp_attn_fwd", "recommender"])
def test_no_plan_costs_less_than_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []
    lower_bound_share = mesh_search.MeshSearch.lower_bound_share

    def spied(sought: mesh_search.MeshSearch, best: Trial) -> float:
        free, pricing = sought.free, sought.pricing
        prices = [free.priced(plan.tensors, pricing).total for plan in sought.plans.values()]
        prices += [free.priced(start, pricing).total for start in free.starts()]
        for boundary, plan in sought.plans.items():
            inside = free.refined_inside(plan.tensors, pricing)
            assert sought._boundary(inside.graph.tensors) == boundary
            assert inside.total <= (1 + 1e-9) * free.priced(plan.tensors, pricing).total
            prices.append(inside.total)
        seen.append((sought.bound, min(prices)))
        return lower_bound_share(sought, best)

    monkeypatch.setattr(mesh_search.MeshSearch, "lower_bound_share", spied)
    meshbridge.search(build(name).export(), machine="h100", keep_annotations=False, seconds=1.0)
    ((bound, least),) = seen
    assert 0 < bound <= least * (1 + 1e-9)


@pytest.mark.parametrize("name", ["vit", "lstm"])
def test_no_op_costs_more_in_the_problem_than_in_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all plans that a search begins with: axes of a mesh split dimensions in either order, of ops with many loops too."""
    compared: list[int] = []

    def spied(sought: mesh_search.MeshSearch) -> list[Tensor]:
        free, pricing = sought.free, sought.pricing
        problem = ShardingProblem(replace(free.folded, pricing=pricing), pricing, free.axes)
        for start in islice(free.starts(), 0, None, 3):
            plan = free.priced(start, pricing)
            for index, node in enumerate(plan.graph.nodes):
                if not node.is_identity:
                    cost, weight = plan._costs[index], plan._weights[index]
                    assert least(problem, index, start) <= weight * (cost.own + sum(cost.arriving)) * (1 + 1e-9)
                    compared.append(index)
        return free.folded.tensors

    monkeypatch.setattr(mesh_search.MeshSearch, "relaxed", spied)
    meshbridge.search(build(name).export(), machine="h100", keep_annotations=False, seconds=0.1)
    assert len(compared) > 1000


def least(problem: ShardingProblem, index: int, tensors: Sequence[Tensor]) -> float:
    """What an op costs at least that alone reads its operands, as they are split."""
    node, choices = problem.graph.nodes[index], problem.options[index]
    costs = problem._alone(index, node)
    for result, tensor in enumerate(node.results):
        if tensor >= 0:
            costs = costs + problem._result(index, result, tensor)[row(problem, tensor, tensors)]
    for operand, tensor in enumerate(node.operands):
        if tensor >= 0:
            needs = [choice.needs[operand] for choice in choices]
            table = problem._table(problem.graph.tensors[tensor], [tensors[tensor].split], needs)
            costs = costs + node.kind.weight * table[0]
    return float(costs.min())


def row(problem: ShardingProblem, tensor: int, tensors: Sequence[Tensor]) -> int:
    """The number of the choice of a tensor that splits it so and reshards nothing."""
    split = problem.splits[tensor].index(tensors[tensor].split)
    forms = problem._forms_of.get(tensor)
    return split if forms is None else forms.index(Form(split))


def test_what_ops_of_different_frequency_read_is_gathered_as_often_as_by_the_most_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three like products are folded into one that runs three times; they and another one read rows, and need all of them."""
    seen: list[tuple[float, float]] = []

    def spied(sought: mesh_search.MeshSearch) -> list[Tensor]:
        relaxed = ShardingProblem(replace(sought.free.folded, pricing=sought.pricing), sought.pricing, sought.free.axes)
        found = solve(relaxed.problem(), seconds=5.0, clock=Work())
        seen.append((found.cost, sought.free.priced(relaxed.tensors(found.chosen), sought.pricing).total))
        return relaxed.tensors(found.chosen)

    def products(rows: jax.Array, alike: list[jax.Array], other: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        return [rows @ each for each in alike], rows @ other

    def matrix(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    monkeypatch.setattr(mesh_search.MeshSearch, "relaxed", spied)
    arguments = matrix(64, 512), [matrix(512, 4096)] * 3, matrix(512, 8192)
    fixed = {"rows": P("x"), "alike/*": P(None, "x"), "other": P(None, "x"), "result/**": P(None, "x")}
    meshbridge.search(jax.jit(products), *arguments, mesh={"x": 8}, machine="h100", fixed=fixed, seconds=0.1)
    ((relaxed, priced),) = seen
    assert relaxed == pytest.approx(priced, rel=1e-9)
