"""Plans put the right data on every device: all pairs of shardings on small meshes, by simulation."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from plan_simulator import run
from reshard_cases import Array, assert_holds, block, coordinates, shards, splits

from meshbridge.resharding import Options, bound, plan
from meshbridge.sharding import Mesh, Sharding, Split


def check(shape: tuple[int, ...], mesh: Mesh, source: Split, target: Split) -> None:
    """Data on every device, for the exact plan, which reaches the bound, and for the default one."""
    before, after = Sharding(mesh.name, source), Sharding(mesh.name, target)
    whole = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    exact, default = (plan(shape, "f32", mesh, before, after, options) for options in (Options(exact=True), Options()))
    for found in {exact, default}:
        assert_holds(found, whole, run(found, shards(whole, mesh, found.source)))
    least = bound(shape, "f32", mesh, before, after)
    assert (exact.wire_bytes, exact.total_bytes) == (least.busiest, least.total), f"{exact} {least}"


EVEN = [((2, 2), (8, 12)), ((2, 4), (16, 8)), ((2, 3), (12, 18)), ((2, 2, 2), (8, 16)), ((4,), (8,)), ((2, 2), (4, 4, 4))]


@pytest.mark.parametrize(("sizes", "shape"), EVEN)
def test_every_even_pair(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = Mesh("m", sizes)
    pairs = list(itertools.product(splits(mesh, len(shape)), repeat=2))
    for source, target in random.Random(0).sample(pairs, min(len(pairs), 400)):
        check(shape, mesh, source, target)


UNEVEN = [((2, 4), (7, 10)), ((2, 3), (7, 11)), ((3, 4), (16, 23)), ((5, 2), (27, 14)), ((2, 2, 2), (5, 9))]


@pytest.mark.parametrize(("sizes", "shape"), UNEVEN)
def test_every_uneven_pair(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = Mesh("m", sizes)
    pairs = list(itertools.product(splits(mesh, len(shape)), repeat=2))
    for source, target in random.Random(0).sample(pairs, min(len(pairs), 150)):
        check(shape, mesh, source, target)


def partial_buffers(whole: Array, mesh: Mesh, sharding: Sharding) -> list[Array]:
    """Shards of terms that reduce to `whole`: random ones, and on the first device of each group what is missing."""
    axes, rng = sharding.partial_axes, np.random.default_rng(0)
    terms: dict[int, Array] = {}
    count = mesh.group_size(axes)
    for number in range(1, count):
        terms[number] = rng.integers(1, 9, whole.shape)
    terms[0] = whole - sum(terms.values())
    by_number = {number: shards(term, mesh, sharding) for number, term in terms.items()}
    return [by_number[block(mesh, axes, at)][device] for device, at in enumerate(coordinates(mesh))]


@pytest.mark.parametrize(("sizes", "shape"), [((2, 4), (16, 8)), ((2, 3), (12, 18)), ((2, 2, 2), (8, 16)), ((2, 3), (5, 7))])
def test_every_partial_sum(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = Mesh("m", sizes)
    for source, target in itertools.product(splits(mesh, len(shape)), repeat=2):
        free = [axis for axis in range(mesh.rank) if not any(axis in axes for axes in source)]
        for count in range(1, len(free) + 1):
            for axes in random.Random(0).sample(list(itertools.combinations(free, count)), 1):
                given = Sharding("m", source, axes)
                found = plan(shape, "f32", mesh, given, Sharding("m", target))
                whole = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
                assert_holds(found, whole, run(found, partial_buffers(whole, mesh, given)))
