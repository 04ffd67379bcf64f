"""Shards with halos and shards with offsets of their own, on either side, against the boxes that the dialect's spec describes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding import PlanOptions, ReshardingPlan, bound, plan
from meshbridge.resharding.boxes import buffer_shape
from tests.resharding.plan_simulator import run
from tests.resharding.reshard_cases import Array, block, coordinates

UNKNOWN = -1


def extent(size: int, count: int, at: int, halo: tuple[int, int], offsets: tuple[int, ...]) -> tuple[int, int, int]:
    """(first element of the buffer, first and last element that count) for block `at` of `count` along one dimension."""
    if offsets:
        return offsets[at], offsets[at], offsets[at + 1]
    length = -(-size // count)
    if at * length >= size:
        return at * length - halo[0], 0, 0
    return at * length - halo[0], max(0, at * length - halo[0]), min(size, (at + 1) * length + halo[1])


def buffers(whole: Array, mesh: Mesh, sharding: Sharding) -> list[Array]:
    """The local buffers, UNKNOWN where a device holds nothing."""
    local, found = buffer_shape(whole.shape, mesh, sharding), []
    for at in coordinates(mesh):
        buffer = np.full(local, UNKNOWN, whole.dtype)
        halos, offsets = list(sharding.halo_sizes), list(sharding.offsets)
        here, there = [], []
        for size, axes in zip(whole.shape, sharding.split_axes, strict=True):
            halo, bounds, count = (0, 0), (), mesh.group_size(axes)
            if axes and halos:
                halo, halos = (halos[0], halos[1]), halos[2:]
            if axes and offsets:
                bounds, offsets = tuple(offsets[: count + 1]), offsets[count + 1 :]
            origin, start, stop = extent(size, count, block(mesh, axes, at), halo, bounds)
            here.append(slice(start - origin, max(start, stop) - origin))
            there.append(slice(start, max(start, stop)))
        buffer[tuple(here)] = whole[tuple(there)]
        found.append(buffer)
    return found


def check(found: ReshardingPlan) -> None:
    whole = np.arange(np.prod(found.shape), dtype=np.int64).reshape(found.shape)
    after = run(found, buffers(whole, found.mesh, found.source))
    for want, got in zip(buffers(whole, found.mesh, found.target), after, strict=True):
        assert np.array_equal(np.where(want == UNKNOWN, UNKNOWN, got), want), f"{found}\n{want}\n{got}"


def test_a_halo_comes_from_the_neighbours() -> None:
    """Two permutes a dimension, or every corner by itself and nothing outside the tensor."""
    mesh = Mesh("m", (2, 4))
    source, target = Sharding("m", ((0,), (1,))), Sharding("m", ((0,), (1,)), halo_sizes=(1, 2, 2, 1))
    found = plan((16, 32), "f32", mesh, source, target)
    check(found)
    assert found.collectives == 4
    exact = plan((16, 32), "f32", mesh, source, target, PlanOptions(exact=True))
    check(exact)
    assert exact.wire_bytes == bound((16, 32), "f32", mesh, source, target).busiest < found.wire_bytes


def test_a_halo_is_cropped_without_communication() -> None:
    mesh = Mesh("m", (4,))
    source = Sharding("m", ((0,), ()), halo_sizes=(1, 1))
    found = plan((8, 4), "f32", mesh, source, Sharding("m", ((0,), ())))
    check(found)
    assert found.collectives == 0


def test_offsets_of_the_spec() -> None:
    mesh = Mesh("m", (2, 2))
    source = Sharding("m", ((0,), (1,), ()), offsets=(0, 24, 32, 0, 20, 32))
    assert buffer_shape((32, 32, 32), mesh, source) == (24, 20, 32)
    for target in (Sharding("m", ((0,), (1,), ())), Sharding("m", ((), (), ())), Sharding("m", ((1,), (), (0,)))):
        for pair in ((source, target), (target, source)):
            check(plan((32, 32, 32), "f32", mesh, *pair))


def test_wrong_offsets_and_halos_are_diagnosed() -> None:
    mesh = Mesh("m", (2,))
    whole = Sharding("m", ((),))
    for wrong in (
        Sharding("m", ((0,),), offsets=(0, 5)),
        Sharding("m", ((0,),), offsets=(0, 5, 9)),
        Sharding("m", ((0,),), halo_sizes=(1,)),
        Sharding("m", ((0,),), halo_sizes=(1, 1), offsets=(0, 5, 8)),
        Sharding("m", ((0,), (0,))),
        Sharding("m", ((3,),)),
    ):
        with pytest.raises(MeshError):
            plan((8,), "f32", mesh, wrong, whole)


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    axes = draw(st.permutations(range(mesh.rank)))
    dims: list[list[int]] = [[] for _ in shape]
    for axis in axes:
        place = draw(st.integers(-1, len(shape) - 1))
        if place >= 0:
            dims[place].append(axis)
    split: Split = tuple(map(tuple, dims))
    kind = draw(st.sampled_from(["plain", "halo", "offsets"]))
    halos: list[int] = []
    offsets: list[int] = []
    for size, its in zip(shape, split, strict=True):
        if its and kind == "halo":
            halos += [draw(st.integers(0, 3)), draw(st.integers(0, 3))]
        elif its and kind == "offsets":
            inside = mesh.group_size(its) - 1
            cuts = draw(st.lists(st.integers(0, size), min_size=inside, max_size=inside))
            offsets += [0, *sorted(cuts), size]
    return Sharding("m", split, halo_sizes=tuple(halos), offsets=tuple(offsets))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_pair(data: st.DataObject) -> None:
    mesh = Mesh("m", data.draw(st.sampled_from([(2, 2), (2, 3), (4,), (5, 2), (2, 2, 2)])))
    shape = tuple(data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    source, target = data.draw(shardings(mesh, shape)), data.draw(shardings(mesh, shape))
    exact = plan(shape, "f32", mesh, source, target, PlanOptions(exact=True))
    check(exact)
    check(plan(shape, "f32", mesh, source, target))
    least = bound(shape, "f32", mesh, source, target)
    assert exact.wire_bytes == least.busiest
    assert exact.total_bytes == least.total
