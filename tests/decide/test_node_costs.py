"""What a node costs: the cheapest of all its options, though most of them are never priced."""

from __future__ import annotations

import random
from math import prod
from typing import Any, cast

import pytest

from meshbridge import resharding
from meshbridge.decide.choice import Pricing
from meshbridge.decide.graph import Graph, NodeKind, Tensor
from meshbridge.decide.node_costs import KindCosts, NodeCost
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.ops.rule import Dims, Loop, ShardingRule

ROWS, COLUMNS, SHARED = (0,), (1,), (2,)
SIZES = (64, 48, 4095, 6)


def _rules(chooser: random.Random) -> list[ShardingRule]:
    rows, columns, shared = (Loop(chooser.choice(SIZES)) for _ in range(3))
    summed = Loop(shared.size, "sum")
    matrix: Dims = (ROWS, COLUMNS)
    return [
        ShardingRule((rows, columns, summed), ((ROWS, SHARED), (SHARED, COLUMNS)), (matrix,), is_contraction=True),
        ShardingRule((rows, columns), (matrix, matrix), (matrix,)),
        ShardingRule((rows, Loop(columns.size, "max")), (matrix,), ((ROWS,),)),
        ShardingRule((rows, columns), ((ROWS,),), (matrix,)),
        ShardingRule((Loop(8), Loop(6)), (matrix,), (((0, 1),),)),
    ]


def _split(chooser: random.Random, mesh: Mesh, rank: int) -> Split:
    homes = [chooser.randrange(-1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    return tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))


def _tensor(chooser: random.Random, mesh: Mesh, rule: ShardingRule, dims: Dims) -> Tensor:
    shape = tuple(prod(rule.loops[loop].size for loop in loops) for loops in dims)
    split = _split(chooser, mesh, len(dims))
    return Tensor(mesh.name, shape, "f32", split, (True,) * len(dims))


def _by_trying_all(kind: NodeKind, mesh: Mesh, tensors: tuple[Tensor, ...]) -> float:
    """The lowest cost of any option and its operands; every option is priced."""
    rule, pricing = kind.rule, Pricing(mesh)
    operands, results = tensors[: len(rule.operands)], tensors[len(rule.operands) :]

    def bytes_of(tensor: Tensor, source: Sharding, target: Sharding) -> float:
        return resharding.cost(tensor.shape, tensor.dtype, mesh, source, target)

    suggestions = tuple(pricing.op(rule).suggestion(place, tensor.split) for place, tensor in enumerate(tensors))
    return min(
        pricing.computed(rule) * choice.share
        + sum(bytes_of(tensor, tensor.sharding, need) for tensor, need in zip(operands, choice.needs, strict=True))
        + sum(bytes_of(tensor, computed, tensor.sharding) for tensor, computed in zip(results, choice.computed, strict=True))
        for _, _, choice in pricing.op(rule).suggested(suggestions)
    )


def _total(cost: NodeCost) -> float:
    return cost.own + sum(cost.arriving)


@pytest.mark.parametrize("seed", range(4))
def test_a_node_costs_what_its_cheapest_option_does(seed: int) -> None:
    """And at least its lower bound; nodes of all sizes share one table of options."""
    chooser = random.Random(seed)
    fitted = 0
    for shape in ((2, 4), (2, 2, 2), (3, 2), (4, 1, 2)):
        mesh = Mesh("m", shape)
        graph = Graph(cast(Any, None), mesh, Pricing(mesh))
        for rule in (rule for _ in range(6) for rule in _rules(chooser)):
            costs = KindCosts(NodeKind(rule, weight=1), graph)
            for _ in range(6):
                tensors = tuple(_tensor(chooser, mesh, rule, dims) for dims in (*rule.operands, *rule.results))
                expected = _by_trying_all(costs.kind, mesh, tensors)
                cost = costs.cost(tensors)
                assert _total(cost) == pytest.approx(expected)
                assert costs.floor(tensors) <= cost.own * (1 + 1e-9)
                assert costs.least <= costs.floor(tensors) * (1 + 1e-9)
                assert [sent > 0 for sent in cost.arriving] == [index in cost.resharded for index in range(len(cost.arriving))]
                fitted += not cost.resharded
    assert fitted > 50
