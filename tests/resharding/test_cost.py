"""The price of a resharding, looked up under other names, is what its plan sends."""

from __future__ import annotations

import random

import pytest

from meshbridge import resharding
from meshbridge.ir.sharding import Mesh, Sharding

MESHES = ((2, 4), (2, 3), (2, 2, 2), (2, 4, 2))


def _drawn(chooser: random.Random, mesh: Mesh, rank: int, *, pending: bool) -> Sharding:
    homes = [chooser.randrange(-2 if pending else -1, rank) for _ in range(mesh.rank)]
    order = chooser.sample(range(mesh.rank), mesh.rank)
    split = tuple(tuple(axis for axis in order if homes[axis] == dim) for dim in range(rank))
    return Sharding(mesh.name, split, tuple(axis for axis in range(mesh.rank) if homes[axis] == -2))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_is_what_the_plan_sends(shape: tuple[int, ...], seed: int) -> None:
    chooser, mesh = random.Random(seed), Mesh("m", shape)
    for _ in range(25):
        sizes = tuple(chooser.choice((1, 3, 4, 6, 8, 12, 16)) for _ in range(chooser.randint(1, 4)))
        source, target = (_drawn(chooser, mesh, len(sizes), pending=pending) for pending in (True, False))
        sent = resharding.plan(sizes, "f32", mesh, source, target).total_bytes / mesh.size
        assert resharding.cost(sizes, "f32", mesh, source, target) == pytest.approx(sent), (sizes, source, target)
