"""Any mesh of up to five axes, any shape, partial values on either side: data on every device and the bound, by simulation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding import PlanOptions, ReshardingPlan, bound, plan
from tests.resharding.plan_simulator import run
from tests.resharding.reshard_cases import Array, block, coordinates, shards

ONE_OR_TWO = [(7,), (12,), (2, 6), (4, 2), (6, 4), (3, 5)]
MESHES = [*ONE_OR_TWO, (2, 1, 3), (3, 2, 2), (4, 2, 2), (2, 2, 2, 2), (2, 3, 1, 2, 2), (2, 2, 2, 2, 2)]


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """Every axis splits a dimension, is partial, or holds copies."""
    dims: list[list[int]] = [[] for _ in range(rank)]
    partial = []
    for axis in draw(st.permutations(range(mesh.rank))):
        place = draw(st.integers(-3, rank - 1))
        if place >= 0:
            dims[place].append(axis)
        elif place == -1:
            partial.append(axis)
    return Sharding("m", tuple(map(tuple, dims)), tuple(sorted(partial)))


def terms(whole: Array, mesh: Mesh, sharding: Sharding) -> list[Array]:
    """Buffers whose sum over the partial axes is `whole`."""
    axes, rng = sharding.partial_axes, np.random.default_rng(0)
    parts = [rng.integers(0, 9, whole.shape) for _ in range(mesh.group_size(axes) - 1)]
    by_number = [shards(part, mesh, sharding) for part in [whole - sum(parts), *parts]]
    return [by_number[block(mesh, axes, at)][device] for device, at in enumerate(coordinates(mesh))]


def check(found: ReshardingPlan, whole: Array) -> None:
    after = run(found, terms(whole, found.mesh, found.source))
    axes, mesh, padding = found.target.partial_axes, found.mesh, -12345
    sums: dict[tuple[int, ...], Array] = {}
    for at, buffer in zip(coordinates(mesh), after, strict=True):
        group = tuple(0 if axis in axes else value for axis, value in enumerate(at))
        sums[group] = sums.get(group, np.zeros_like(buffer)) + buffer
    for at, want in zip(coordinates(mesh), shards(whole, mesh, found.target, padding), strict=True):
        if at in sums:
            assert np.array_equal(np.where(want == padding, padding, sums[at]), want), f"{found}\ndevice {at}"


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_pair(data: st.DataObject) -> None:
    mesh = Mesh("m", data.draw(st.sampled_from(MESHES)))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 5, 6, 12, 16, 24]), min_size=1, max_size=3)))
    source, target = data.draw(shardings(mesh, len(shape))), data.draw(shardings(mesh, len(shape)))
    whole = np.random.default_rng(1).integers(0, 99, shape)
    for options in (PlanOptions(), PlanOptions(exact=True), PlanOptions(alpha=0, rounds=1), PlanOptions(listed=0)):
        check(plan(shape, "f32", mesh, source, target, options), whole)
    if not source.partial_axes:
        exact, least = (
            plan(shape, "f32", mesh, source, target, PlanOptions(exact=True)),
            bound(shape, "f32", mesh, source, target),
        )
        assert (exact.wire_bytes, exact.total_bytes) == (least.busiest, least.total)
