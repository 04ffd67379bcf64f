"""Prices of deciding: what is said of them without pricing is never above them."""

from __future__ import annotations

import random

import pytest

from meshbridge.decide.choice import Pricing
from meshbridge.ir.sharding import Mesh, Sharding

MESHES = ((2, 4), (3, 2), (2, 2, 2), (8, 4), (2, 8, 2), (1, 6), (4, 3, 2))


def _drawn(chooser: random.Random, mesh: Mesh, rank: int, *, may_be_partial: bool) -> Sharding:
    homes = [chooser.randrange(-2 if may_be_partial else -1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    split = tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))
    return Sharding(mesh.name, split, tuple(axis for axis in range(mesh.rank) if homes[axis] == -2))


@pytest.mark.parametrize("seed", range(6))
def test_no_price_is_below_its_floor(seed: int) -> None:
    """Of even and uneven pairs, partial ones included; most floors say something."""
    chooser, told = random.Random(seed), 0
    for _ in range(200):
        mesh, rank = Mesh("m", chooser.choice(MESHES)), chooser.randint(1, 3)
        sizes = tuple(chooser.choice((mesh.size, 7, 24, 4 * mesh.size, 4095)) for _ in range(rank))
        source, target = (_drawn(chooser, mesh, rank, may_be_partial=partial) for partial in (True, False))
        prices = Pricing(mesh).arriving((sizes, "bf16"), source)
        floor = prices.least(target)
        assert floor <= prices[target] * (1 + 1e-9), (sizes, mesh.shape, source, target)
        assert prices.least(target) == prices[target]
        told += floor > 0
    assert told > 100
