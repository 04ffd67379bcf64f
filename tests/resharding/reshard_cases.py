"""Shardings to test with, and the shards that they stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split, local_shape
from meshbridge.resharding import ReshardingPlan

Array = np.ndarray[Any, Any]


def splits(mesh: Mesh, rank: int) -> list[Split]:
    """Every split of a tensor of `rank` over `mesh`."""
    found = set[Split]()
    for count in range(mesh.rank + 1):
        for axes in itertools.permutations(range(mesh.rank), count):
            for dims in itertools.product(range(rank), repeat=count):
                found.add(tuple(tuple(a for a, d in zip(axes, dims, strict=True) if d == dim) for dim in range(rank)))
    return sorted(found)


def coordinates(mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Devices in row-major order of the mesh."""
    return itertools.product(*(range(size) for size in mesh.shape))


def block(mesh: Mesh, axes: Axes, at: tuple[int, ...]) -> int:
    """Number of the device at `at` along `axes`, outer to inner."""
    index = 0
    for axis in axes:
        index = index * mesh.shape[axis] + at[axis]
    return index


def shards(whole: Array, mesh: Mesh, sharding: Sharding, fill: float = 77) -> list[Array]:
    """The local shard of `whole` on every device, padded with `fill`."""
    local = local_shape(whole.shape, mesh, sharding.split_axes)
    found = []
    for at in coordinates(mesh):
        index = [block(mesh, axes, at) * size for axes, size in zip(sharding.split_axes, local, strict=True)]
        piece = whole[tuple(slice(start, start + size) for start, size in zip(index, local, strict=True))]
        padded = np.full(local, fill, whole.dtype)
        padded[tuple(slice(size) for size in piece.shape)] = piece
        found.append(padded)
    return found


def assert_holds(plan: ReshardingPlan, whole: Array, buffers: list[Array]) -> None:
    """Every device holds its shard of `whole` under the plan's target, padding aside."""
    padding = -12345
    for device, (want, got) in enumerate(zip(shards(whole, plan.mesh, plan.target, padding), buffers, strict=True)):
        assert want.shape == got.shape, f"{plan}\ndevice {device}: {want.shape} {got.shape}"
        assert np.array_equal(np.where(want == padding, padding, got), want), f"{plan}\ndevice {device}:\n{want}\n{got}"
