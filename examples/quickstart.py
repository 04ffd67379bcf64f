"""Partition a two-layer network, see the collectives, run it on 8 virtual devices, and compare with one device."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.export
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge


def network(x: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ into) @ out_of


mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
rows, columns, deep = (NamedSharding(mesh, spec) for spec in (P("data", None), P(None, "model"), P("model", None)))
inputs = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((16, 64), (64, 256), (256, 64))]

exported = jax.export.export(jax.jit(network, in_shardings=(rows, columns, deep), out_shardings=rows))(*inputs)
partitioned = meshbridge.partition(exported)
result = jax.jit(partitioned.call, in_shardings=(rows, columns, deep), out_shardings=rows)(*inputs)

print(*(line.strip() for line in partitioned.mlir_module().splitlines() if "stablehlo.all_" in line), sep="\n")
expected = network(*inputs)
print(f"largest difference from one device: {np.abs(result - expected).max() / np.abs(expected).max():.0e}, relative")
