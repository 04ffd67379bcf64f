"""Emitted plans, lowered and run by XLA on 8 virtual devices, put the right data on every device; so do the spec's examples."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax
import numpy as np
import pytest

from meshbridge.ir import groups, relays
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding import PlanOptions, ReshardingPlan, bound, plan
from meshbridge.resharding import steps as s
from tests.mesh_axes import needs_mesh_axes
from tests.resharding.reshard_cases import assert_holds, block, coordinates, shards, splits
from tests.resharding.xla import program, run_on_xla

if len(jax.devices("cpu")) < 8:
    pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8", allow_module_level=True)

EXACT = PlanOptions(exact=True)

UNLISTED = PlanOptions(listed=0)
"""No permute lists devices, as on large meshes."""


def check(found: ReshardingPlan) -> None:
    whole = np.arange(np.prod(found.shape)).reshape(found.shape).astype(np.float32)
    assert_holds(found, whole, run_on_xla(found, shards(whole, found.mesh, found.source)))


SPEC = [
    ((2, 3), (12,), "[[0, 1]]", "[[1, 0]]"),
    ((2, 3), (12,), "[[0, 1]]", "[[1]]"),
    ((2, 3), (4, 6), "[[], [0, 1]]", "[[], [0]]"),
    ((2, 2, 2), (4, 8), "[[0], [1, 2]]", "[[0], [2]]"),
    ((2, 3), (6, 6), "[[0], [1]]", "[[1], [0]]"),
    ((3,), (6, 6), "[[0], []]", "[[], [0]]"),
    ((2, 2, 2), (4, 4), "[[0], [1, 2]]", "[[0, 1], [2]]"),
]
"""The resharding spec's examples that 8 devices can run."""


@pytest.mark.parametrize(("sizes", "shape", "source", "target"), SPEC)
@pytest.mark.parametrize("options", [PlanOptions(), EXACT])
def test_examples_of_the_spec(
    sizes: tuple[int, ...], shape: tuple[int, ...], source: str, target: str, options: PlanOptions
) -> None:
    mesh = Mesh("m", sizes)
    before, after = (Sharding("m", tuple(map(tuple, eval(text)))) for text in (source, target))
    found = plan(shape, "f32", mesh, before, after, options)
    check(found)
    if options.exact:
        assert found.wire_bytes == bound(shape, "f32", mesh, before, after).busiest


@pytest.mark.parametrize(
    ("sizes", "shape", "order"),
    [
        ((2, 4), (16, 24), ()),
        ((2, 2, 2), (8, 4, 16), (5, 3, 0, 1, 7, 2, 6, 4)),
        ((2, 3), (7, 11), (5, 0, 3, 1, 2, 4)),
        ((4, 2), (10, 9), ()),
        ((8,), (16, 8), ()),
        ((2, 4), (16, 24), (0, 4, 2, 6, 1, 5, 3, 7)),
    ],
)
@pytest.mark.parametrize("listed", [64, 0], ids=["lists", "axes"])
def test_a_sample_of_pairs(
    sizes: tuple[int, ...], shape: tuple[int, ...], order: tuple[int, ...], listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "DENSE_DEVICES", listed)
    mesh, rng = Mesh("m", sizes, device_ids=order), random.Random(1)
    every = splits(mesh, len(shape))
    for _ in range(12):
        source, target = rng.choice(every), rng.choice(every)
        for options in (EXACT, UNLISTED):
            check(plan(shape, "f32", mesh, Sharding("m", source), Sharding("m", target), options))


@pytest.mark.parametrize(
    ("sizes", "shape", "source", "target", "counts"),
    [
        ((8,), (16, 4), "[[0], []]", "[[0], []]", []),
        ((2, 4), (16, 24), "[[0], [1]]", "[[1], [0]]", [2, 1]),  # half of an axis changes places with the other axis
        ((4, 2), (64, 3), "[[0, 1], []]", "[[1, 0], []]", [2]),
        ((2, 4), (8, 3), "[[0, 1], []]", "[[1, 0], []]", [6]),  # small: swaps of two devices each
        ((4, 2), (40, 24), "[[0, 1], []]", "[[1], []]", [2, 1]),
        ((4, 2), (41, 5), "[[0, 1], []]", "[[1, 0], []]", [2]),
    ],
)
@needs_mesh_axes
def test_relabellings_by_all_to_alls(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    source: str,
    target: str,
    counts: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relays, "LAUNCH", 0)
    before, after = (Sharding("m", tuple(map(tuple, eval(text)))) for text in (source, target))
    found = plan(shape, "f32", Mesh("m", sizes), before, after, PlanOptions(alpha=0, listed=0))
    assert [step.collectives for step in found.steps if step.collectives] == counts, found
    assert "collective_permute" not in str(program(found))
    check(found)


@pytest.mark.parametrize(
    ("sizes", "size", "source", "target"),
    [
        ((2, 4), 50, (0, 1), (0,)),  # shorter blocks in the end
        ((2, 4), 50, (0,), (0, 1)),  # longer ones to begin with
        ((4, 2), 9, (0, 1), (0,)),  # rows from two devices before
        ((4, 2), 9, (0,), (1, 0)),
        ((2, 2, 2), 3, (0, 1), (0, 1, 2)),  # and from three behind
    ],
)
@pytest.mark.parametrize("order", [(), (5, 3, 0, 1, 7, 2, 6, 4)])
@pytest.mark.parametrize("listed", [256, 0])
def test_blocks_of_another_length(
    sizes: tuple[int, ...], size: int, source: tuple[int, ...], target: tuple[int, ...], order: tuple[int, ...], listed: int
) -> None:
    pair = [Sharding("m", ((), axes)) for axes in (source, target)]
    found = plan((3, size), "f32", Mesh("m", sizes, device_ids=order), *pair, PlanOptions(rounds=1, alpha=0, listed=listed))
    assert any(isinstance(step, s.Reblock) for step in found.steps) or size == 9, found  # of few rows all may be gathered
    check(found)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "product"])
def test_partial_values(kind: str) -> None:
    mesh, rng = Mesh("m", (2, 4)), np.random.default_rng(0)
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}[kind].reduce
    for target in (((1,), ()), ((), ()), ((0,), (1,))):
        found = plan((8, 8), "f32", mesh, Sharding("m", ((0,), ()), (1,), kind), Sharding("m", target))
        terms = rng.integers(1, 4, (8, 8, 8)).astype(np.float32)
        given = [terms[device % 4][device // 4 * 4 : device // 4 * 4 + 4] for device in range(8)]
        assert_holds(found, combine(terms[:4]), run_on_xla(found, given))


def test_partial_over_fewer_axes_stays_partial() -> None:
    mesh = Mesh("m", (2, 4))
    found = plan((8, 8), "f32", mesh, Sharding("m", ((), ()), (0, 1)), Sharding("m", ((1,), ()), (0,)))
    terms = np.random.default_rng(0).integers(0, 9, (8, 8, 8)).astype(np.float32)
    after = run_on_xla(found, list(terms))
    for column in range(4):
        want = terms.sum(0)[2 * column : 2 * column + 2]
        assert np.array_equal(after[column] + after[4 + column], want)


def test_factors_of_axes() -> None:
    """On 4x2, a resharding between its axes moves one half of axis 0 at a time: steps of every kind on a part of an axis."""
    mesh, wanted = Mesh("m", (4, 2)), {s.Slice, s.AllGather, s.AllToAll, s.Permute, s.ReduceScatter}
    whole = np.arange(16 * 16).reshape(16, 16).astype(np.float32)
    for source, target in itertools.product(splits(mesh, 2), repeat=2):
        free = tuple(axis for axis in range(2) if not any(axis in axes for axes in source))
        given = Sharding("m", source, free)
        found = plan((16, 16), "f32", mesh, given, Sharding("m", target), PlanOptions(alpha=1e-6))
        parts = {type(step) for step in found.steps if type(step) in wanted and not _spells_axes(mesh, step)}
        if parts:
            wanted -= parts
            terms = [whole] + [np.zeros_like(whole)] * (mesh.group_size(free) - 1)
            by_term = [shards(term, mesh, given) for term in terms]
            buffers = [by_term[block(mesh, free, at)][device] for device, at in enumerate(coordinates(mesh))]
            assert_holds(found, whole, run_on_xla(found, buffers))
    assert not wanted


def test_a_part_of_an_axis_is_reduced_and_scattered_in_one_collective() -> None:
    mesh = Mesh("m", (4, 2))
    plans = [plan((16, 16), "f32", mesh, Sharding("m", ((1,), ()), (0,)), Sharding("m", split)) for split in splits(mesh, 2)]
    parts = [
        found for found in plans for step in found.steps if isinstance(step, s.ReduceScatter) and not _spells_axes(mesh, step)
    ]
    assert parts
    for found in parts:
        text = str(program(found))
        assert "stablehlo.reduce_scatter" in text
        assert text.count("stablehlo.add") == text.count("reduce_scatter")


def _spells_axes(mesh: Mesh, step: Any) -> bool:
    lists = (step.sources, step.targets) if isinstance(step, s.Permute) else (step.digits,)
    return all(s.whole_axes(mesh, digits) is not None for digits in lists)
