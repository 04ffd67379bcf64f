"""Plans put the right data on every device: all pairs of shardings on small meshes, by simulation."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding import PlanOptions, bound, cost, plan
from meshbridge.resharding.check import PlanError
from meshbridge.resharding.check import check as symbolic_check
from meshbridge.resharding.tiles import TileExchange
from tests.resharding.plan_simulator import run
from tests.resharding.reshard_cases import Array, assert_holds, block, coordinates, shards, splits


def check(shape: tuple[int, ...], mesh: Mesh, source: Split, target: Split) -> None:
    """Data on every device, for the exact plan, which reaches the bound, and for the default one."""
    before, after = Sharding(mesh.name, source), Sharding(mesh.name, target)
    whole = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    exact, default = (plan(shape, "f32", mesh, before, after, options) for options in (PlanOptions(exact=True), PlanOptions()))
    for found in {exact, default}:
        assert_holds(found, whole, run(found, shards(whole, mesh, found.source)))
    least = bound(shape, "f32", mesh, before, after)
    assert (exact.wire_bytes, exact.total_bytes) == (least.busiest, least.total), f"{exact} {least}"


SIZES = [(4,), (2, 2), (2, 3), (2, 4), (2, 2, 2), (3, 4)]
EVEN_SHAPES = [(24,), (24, 12), (24, 12, 48)]
UNEVEN_SHAPES = [(11,), (7, 10), (5, 9, 7)]


def pairs_of(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[Split, Split]]:
    """Every pair of splits, in an order without a system."""
    pairs = list(itertools.product(splits(Mesh("m", sizes), len(shape)), repeat=2))
    random.Random(0).shuffle(pairs)
    return pairs


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", [*EVEN_SHAPES, *UNEVEN_SHAPES])
def test_pairs(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    for source, target in pairs_of(sizes, shape)[:100]:
        check(shape, Mesh("m", sizes), source, target)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", [*EVEN_SHAPES, *UNEVEN_SHAPES])
def test_more_pairs(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    for source, target in pairs_of(sizes, shape)[100:500]:
        check(shape, Mesh("m", sizes), source, target)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", [*EVEN_SHAPES, *UNEVEN_SHAPES])
def test_every_pair(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    for source, target in pairs_of(sizes, shape)[500:]:
        check(shape, Mesh("m", sizes), source, target)


def test_nothing_to_move() -> None:
    """Tensors without elements, scalars, meshes of one device."""
    mesh = Mesh("m", (2, 4))
    for shape, source, target in (((0, 8), ((0,), (1,)), ((1,), (0,))), ((), (), ()), ((4, 0), ((), ()), ((1,), ()))):
        check(shape, mesh, source, target)
    single = plan((8,), "f32", Mesh("m", (1,)), Sharding("m", ((0,),)), Sharding("m", ((),)))
    assert not single.steps


PARTIAL = [
    ((2, 4), (1,), ((1,), ())),
    ((2, 4), (1,), ((), (1,))),
    ((2, 4), (1,), ((), ())),
    ((2, 4), (0, 1), ((0, 1), ())),
    ((2, 4), (0, 1), ((0,), (1,))),
    ((2, 4), (0, 1), ((0,), ())),
    ((2, 4), (0, 1), ((), ())),
    ((2, 2, 2), (0, 2), ((2,), (0,))),
    ((2, 3), (1,), ((1,), ())),
    ((2, 3), (1,), ((), (0,))),
]


@pytest.mark.parametrize(("sizes", "axes", "target"), PARTIAL)
def test_partial_values_reach_the_bound(sizes: tuple[int, ...], axes: tuple[int, ...], target: Split) -> None:
    mesh, source = Mesh("m", sizes), Sharding("m", ((), ()), axes)
    exact = plan((96, 192), "f32", mesh, source, Sharding("m", target), PlanOptions(exact=True))
    assert exact.total_bytes == pytest.approx(bound((96, 192), "f32", mesh, source, Sharding("m", target)).total)


@pytest.mark.parametrize(("sizes", "shape"), [((2, 4), (16, 8)), ((2, 2, 2), (16, 8)), ((3, 4), (24, 36)), ((2, 3, 2), (36, 24))])
def test_partial_values_of_split_tensors(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """At the bound where the source's splits stay; where others take their places, the sums are not where they are wanted."""
    mesh, rng = Mesh("m", sizes), random.Random(3)
    every = splits(mesh, len(shape))
    for _ in range(150):
        split, target = rng.choice(every), rng.choice(every)
        free = [axis for axis in range(mesh.rank) if not any(axis in axes for axes in split)]
        if free:
            axes = tuple(rng.sample(free, rng.randint(1, len(free))))
            pair = Sharding("m", split, axes), Sharding("m", target)
            found, least = plan(shape, "f32", mesh, *pair, PlanOptions(exact=True)), bound(shape, "f32", mesh, *pair)
            stays = all(after[: len(before)] == before for before, after in zip(split, target, strict=True))
            assert least.total <= found.total_bytes <= (1 if stays else 1.5) * least.total, found


def test_a_value_becomes_partial() -> None:
    mesh = Mesh("m", (2, 4))
    whole = np.arange(64).reshape(8, 8)
    found = plan((8, 8), "f32", mesh, Sharding("m", ((1,), ())), Sharding("m", ((), (1,)), (0,)))
    after = run(found, shards(whole, mesh, found.source))
    for column in range(4):
        assert np.array_equal(after[column] + after[4 + column], whole[:, 2 * column : 2 * column + 2])


@pytest.mark.parametrize("kind", ["sum", "product", "max", "min", "bitwise_or"])
@pytest.mark.parametrize("source", [((0,), ()), ((1, 0), ()), ((0, 1), ()), ((1,), (0,)), ((1,), (2, 0))])
def test_shards_become_terms_where_they_are(source: Split, kind: str) -> None:
    """Along the innermost axes of a dimension, each device's shard among neutral elements is its term: nothing is sent."""
    mesh, whole = Mesh("m", (2, 2, 2)), np.arange(1, 65).reshape(8, 8)
    pair = Sharding("m", source), Sharding("m", ((), ()), (0,), kind)
    found = plan((8, 8), "i32", mesh, *pair, PlanOptions(check=True))
    after = run(found, shards(whole, mesh, found.source))
    combine = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum, "bitwise_or": np.bitwise_or}[kind]
    for device in range(4):
        assert np.array_equal(combine(after[device], after[4 + device]), whole)
    assert found.total_bytes == bound((8, 8), "i32", mesh, *pair).total
    assert bool(found.total_bytes) == (source != ((0,), ()))


def test_a_plan_is_memoised_and_readable() -> None:
    mesh, pair = Mesh("m", (65536,)), (Sharding("m", ((0,), ())), Sharding("m", ((), (0,))))
    found = plan((65536, 65536), "bf16", mesh, *pair)
    assert plan((65536, 65536), "bf16", mesh, *pair) is found
    assert "all-to-all split 1 concat 0 over [0]" in str(found)
    assert cost((65536, 65536), "bf16", mesh, *pair) == found.wire_bytes == 2 * 65535


def test_a_wrong_plan_is_caught() -> None:
    """A plan with a step left out does not pass symbolic execution."""
    mesh = Mesh("m", (2, 3))
    for shape, source, target in (((12, 12), ((0,), ()), ((), (0,))), ((12, 12), ((0,), (1,)), ((1,), (0,)))):
        found = plan(shape, "f32", mesh, Sharding("m", source), Sharding("m", target), PlanOptions(exact=True))
        for i, step in enumerate(found.steps):
            steps = found.steps[:i] + found.steps[i + 1 :]
            if isinstance(step, TileExchange):
                steps = (replace(step, rounds=step.rounds[1:]),)
            with pytest.raises(PlanError):
                symbolic_check(replace(found, steps=steps))


@pytest.mark.parametrize(("sizes", "shape"), [((3, 4), (16, 23)), ((5, 2), (27, 14)), ((7,), (20, 15)), ((2, 2, 2), (13, 17))])
def test_uneven_shapes_of_the_spec(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    for source, target in pairs_of(sizes, shape)[:150]:
        check(shape, Mesh("m", sizes), source, target)


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
