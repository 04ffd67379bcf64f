"""The mesh that the programs of this folder share, and what they put on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS = 3


def mesh_of(**sizes: int) -> Mesh:
    """A mesh of 8 devices with these axes, all Auto: `mesh_of(data=2, model=4)`."""
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed numbers, in single precision unless JAX computes in double."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float64 if jax.config.jax_enable_x64 else np.float32)


def integers(most: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Integers below `most`."""
    return np.random.default_rng(seed).integers(0, most, shape, dtype=np.int32)


def on(mesh: Mesh, tree: Any, *spec: Any) -> Any:
    """A tree of arrays, all put on the devices by one spec."""
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


def fsdp(mesh: Mesh, axis: str = "data", least: int = 256) -> Callable[[Any], Any]:
    """How parameters of `least` elements or more are put on devices: the largest dimension that the axis divides along it."""

    def put(leaf: Any) -> Any:
        dims = [dim for dim in range(leaf.ndim) if leaf.shape[dim] % mesh.shape[axis] == 0] if leaf.size >= least else []
        chosen = max(dims, key=lambda dim: leaf.shape[dim], default=None)
        return jax.device_put(leaf, NamedSharding(mesh, P(*(axis if dim == chosen else None for dim in range(leaf.ndim)))))

    return put
