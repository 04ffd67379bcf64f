"""A step on 128 virtual devices, whose groups are written by axes: run as a process of its own, which says how it went."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=128"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge


def step(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def loss(up: jax.Array, down: jax.Array) -> jax.Array:
        y = jax.nn.softmax(jnp.tanh(x @ up) @ down, axis=-1)
        return jnp.mean(jnp.square(y - jnp.cumsum(y, axis=0)))

    return jax.value_and_grad(loss, (0, 1))(up, down)


def mesh(shape: tuple[int, int], names: tuple[str, str]) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * 2)


def check(found: object, arguments: list[np.ndarray]) -> None:
    """`found` is what one device computes."""
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(*arguments)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=1e-6)


def main() -> None:
    random = np.random.default_rng(0)
    arguments = [0.1 * random.normal(size=size).astype(np.float32) for size in ((256, 128), (128, 256), (256, 128))]
    own, other = mesh((8, 16), ("data", "model")), mesh((16, 8), ("model", "data"))
    specs = (P("data", None), P("data", "model"), P("model", "data"))
    exported = export.export(jax.jit(step, in_shardings=[NamedSharding(own, spec) for spec in specs]))(*arguments)
    partitioned = export.deserialize(bytearray(meshbridge.partition(exported).serialize()))
    text = partitioned.mlir_module()
    for caller in (own, other):
        placed = [jax.device_put(x, NamedSharding(caller, spec)) for x, spec in zip(arguments, specs, strict=True)]
        check(jax.jit(lambda *values: partitioned.call(*values))(*placed), arguments)
    check(meshbridge.compile(exported)(*arguments), arguments)
    print("by axes:", text.count("replica_group_mesh_axes") > 0, "by lists:", text.count("replica_groups = dense") > 0)


if __name__ == "__main__":
    main()
