"""What plans hold: by the model for all pairs on small meshes, and by XLA's count of temporary memory for a sample."""

from __future__ import annotations

import itertools
import random
from math import prod

import jax
import numpy as np
import pytest

from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding import PlanOptions, plan
from tests.resharding.plan_simulator import run
from tests.resharding.reshard_cases import assert_holds, shards, splits
from tests.resharding.xla import compiled

EXACT = PlanOptions(exact=True)

MESHES = [
    ((2, 2), (8, 12)),
    ((2, 3), (12, 18)),
    ((2, 4), (16, 8)),
    ((2, 2, 2), (16, 8)),
    ((3, 4), (24, 36)),
    ((2, 4), (8, 16, 24)),
    ((2, 3), (70, 110)),
    ((2, 4), (70, 100)),
    ((3, 4), (101, 103)),
    ((2, 2, 2), (50, 90)),
]


@pytest.mark.parametrize(("sizes", "shape"), MESHES)
def test_no_exact_plan_holds_more_than_both_endsand_a_buffer_of_the_smaller(
    sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    mesh = Mesh("m", sizes)
    pairs = list(itertools.product(splits(mesh, len(shape)), repeat=2))
    for source, target in random.Random(2).sample(pairs, min(len(pairs), 300)):
        found = plan(shape, "f32", mesh, Sharding("m", source), Sharding("m", target), EXACT)
        ends = [4 * prod(found.start), 4 * prod(found.steps[-1].shape if found.steps else found.start)]
        assert found.peak_bytes <= sum(ends) + min(ends), found


def test_small_tensors_may_hold_more() -> None:
    mesh, pair = Mesh("m", (2, 4)), (Sharding("m", ((1,), (0,))), Sharding("m", ((), ())))
    small, large = (plan(shape, "f32", mesh, *pair) for shape in ((96, 192), (960, 1920)))
    assert (small.collectives, large.collectives) == (1, 2)
    assert small.peak_bytes > small.peak_bound
    assert large.peak_bytes <= large.peak_bound
    assert plan((96, 192), "f32", mesh, *pair, PlanOptions(scratch=0)).collectives == 2


def test_tiles_in_pieces() -> None:
    """The second round's tiles would not fit beside both shards, so they go in two pieces; the data is the same."""
    mesh, whole = Mesh("m", (2, 3)), np.arange(1000 * 1001).reshape(1000, 1001)
    pair = Sharding("m", ((0,), (1,))), Sharding("m", ((1,), (0,)))
    quick, lean = (
        plan(whole.shape, "f32", mesh, *pair, options) for options in (PlanOptions(exact=True, scratch=1 << 30), EXACT)
    )
    assert quick.wire_bytes == lean.wire_bytes
    assert quick.collectives < lean.collectives
    assert quick.peak_bytes > lean.peak_bound >= lean.peak_bytes
    assert_holds(lean, whole, run(lean, shards(whole, mesh, pair[0])))


XLA: list[tuple[tuple[int, ...], tuple[int, ...], Split, Split]] = [
    ((2, 3), (960, 1920), ((0,), (1,)), ((1,), (0,))),
    ((2, 4), (960, 1920), ((0, 1), ()), ((), (1, 0))),
    ((2, 2, 2), (960, 1920), ((0,), (1, 2)), ((0, 1), (2,))),
    ((2, 4), (960, 1920), ((0,), (1,)), ((1,), (0,))),
    ((2, 4), (960, 1920), ((1,), (0,)), ((), ())),
    ((2, 4), (96, 192), ((0, 1), ()), ((), (1, 0))),
    ((2, 3), (1000, 1001), ((0,), (1,)), ((1,), (0,))),
    ((2, 4), (1000, 1001), ((0, 1), ()), ((), (1, 0))),
    ((2, 4), (70, 100), ((1,), (0,)), ((), ())),
]


@pytest.mark.skipif(len(jax.devices("cpu")) < 8, reason="needs 8 devices")
@pytest.mark.parametrize(("sizes", "shape", "source", "target"), XLA)
def test_temporary_memory_in_xla(sizes: tuple[int, ...], shape: tuple[int, ...], source: Split, target: Split) -> None:
    """At most two of the larger shard."""
    found = plan(shape, "f32", Mesh("m", sizes), Sharding("m", source), Sharding("m", target), EXACT)
    shard = 4 * max(prod(found.start), prod(found.steps[-1].shape))
    assert compiled(found).memory.temp_size_in_bytes <= 2 * shard
