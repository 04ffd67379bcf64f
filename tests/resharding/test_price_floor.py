"""Prices of deciding: what is said of them without pricing is never above them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from meshbridge import resharding
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.uneven import candidate_between

MESHES = ((2, 4), (3, 2), (2, 2, 2), (8, 4), (2, 8, 2), (1, 6), (4, 3, 2), (64, 16), (32, 2, 16), (65536,))


def _drawn(chooser: random.Random, mesh: Mesh, rank: int, *, may_be_partial: bool) -> Sharding:
    homes = [chooser.randrange(-2 if may_be_partial else -1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    split = tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))
    return Sharding(mesh.name, split, tuple(axis for axis in range(mesh.rank) if homes[axis] == -2))


@pytest.mark.parametrize("seed", range(6))
def test_no_price_is_below_its_floor(seed: int) -> None:
    """Of even and uneven pairs, partial ones included; most floors say something, and many are said to be the price, and are."""
    chooser, told, exact = random.Random(seed), 0, 0
    for _ in range(2000):
        mesh, rank = Mesh("m", chooser.choice(MESHES)), chooser.randint(1, 3)
        sizes = tuple(chooser.choice((mesh.size, 7, 24, 4 * mesh.size, 4095)) for _ in range(rank))
        source, target = (_drawn(chooser, mesh, rank, may_be_partial=partial) for partial in (True, False))
        if chooser.random() < 0.3 and not {*source.partial_axes}.intersection(target.used_axes):
            target = replace(target, partial_axes=source.partial_axes, partial_kind=chooser.choice(("sum", "max")))
        if chooser.random() < 0.3:
            source, target = source.trimmed(), target.trimmed()
        floor, is_price, launches = resharding.floor(sizes, mesh, source, target)
        assert floor <= resharding.cost(sizes, "i8", mesh, source, target) * (1 + 1e-9), (sizes, mesh.shape, source, target)
        if is_price:
            way = candidate_between(sizes, "i8", mesh, source.padded(rank), target.padded(rank), resharding.PlanOptions())
            assert floor == pytest.approx(way.received), (sizes, mesh.shape, source, target)
            assert launches in (0, way.launches), (sizes, mesh.shape, source, target)
        told += floor > 0
        exact += is_price
    assert told > 1000
    assert exact > 300
