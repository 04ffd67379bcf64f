"""Plans put the right data on every device: all pairs of shardings on small meshes, by simulation."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from reshard_cases import assert_holds, shards, splits
from plan_simulator import run

from meshbridge.resharding import plan
from meshbridge.sharding import Mesh, Sharding, Split


def check(shape: tuple[int, ...], mesh: Mesh, source: Split, target: Split) -> None:
    found = plan(shape, "f32", mesh, Sharding(mesh.name, source), Sharding(mesh.name, target))
    whole = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    assert_holds(found, whole, run(found, shards(whole, mesh, found.source)))


@pytest.mark.parametrize(("sizes", "shape"), [((2, 2), (8, 12)), ((2, 4), (16, 8)), ((2, 2, 2), (8, 16)), ((4,), (8,)), ((2, 2), (4, 4, 4))])
def test_every_even_pair(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = Mesh("m", sizes)
    pairs = list(itertools.product(splits(mesh, len(shape)), repeat=2))
    for source, target in random.Random(0).sample(pairs, min(len(pairs), 1500)):
        check(shape, mesh, source, target)
