"""Partitions a two-layer network, runs it on 8 virtual devices, and compares with one device.

python examples/quickstart.py
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge


def network(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    """Rows of `x` are split over `data`; the hidden layer over `model`."""
    return jnp.tanh(x @ w1) @ w2


def main() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    shardings = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data", None), (None, "model"), ("model", None))]
    jitted = jax.jit(network, in_shardings=shardings, out_shardings=shardings[0])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 128), (128, 512), (512, 128))]
    exported = export.export(jitted)(*shapes)

    print("What it communicates:")
    for collective in meshbridge.report(exported).collectives:
        size = f"{collective.wire_bytes:,.0f}"
        print(f"  {collective.kind} over {collective.group_size} devices, {size} bytes each, from {collective.location}")

    partitioned = meshbridge.partition(exported)
    generator = np.random.default_rng(0)
    arrays = [0.1 * generator.standard_normal(shape.shape).astype(np.float32) for shape in shapes]
    placed = [jax.device_put(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]
    result = jax.jit(partitioned.call)(*placed)

    reference = jax.jit(network)(*arrays)
    error = float(jnp.abs(np.asarray(result) - reference).max() / jnp.abs(reference).max())
    print(f"On 8 devices the result is sharded as {result.sharding.spec}; relative error against one device: {error:.1e}")
    assert error < 1e-4


if __name__ == "__main__":
    main()
