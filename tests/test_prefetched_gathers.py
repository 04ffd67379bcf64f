"""Parameters that a loop gathers a trip ahead: the numbers stay, and so do bytes and collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.cost.communication import communication
from meshbridge.ir.mlir import find, ir

AHEAD, KEPT = "v5e", "v5p"
"""A machine that gathers beside kernels, and one that does not."""


def training_step(mesh: jax.sharding.Mesh, layers: int, width: int, dtype: Any) -> Any:
    """A step of layers under scan, computed again in the backward pass, all parameters sharded; and its arguments."""
    sharded, batch = (
        NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, None, ("data", "model")), (("data", "model"),))
    )

    def layer(x: Any, weights: Any) -> Any:
        first, second = weights
        return x + jnp.tanh(x @ first) @ second, None

    def loss(weights: Any, x: Any) -> Any:
        out, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return (out.astype(jnp.float32) ** 2).sum()

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, jax.grad(loss)(weights, x))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(layers, width, 512), (layers, 512, width), (4096, width)]
    first, second, x = (0.1 * jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
    jitted = jax.jit(step, in_shardings=((sharded, sharded), batch), out_shardings=(sharded, sharded))
    return jitted, step, ((first, second), x)


@pytest.mark.parametrize(("layers", "width", "dtype"), [(2, 512, jnp.float32), (5, 520, jnp.float32), (3, 1024, jnp.bfloat16)])
def test_numbers_and_bytes(mesh: jax.sharding.Mesh, layers: int, width: int, dtype: Any) -> None:
    jitted, step, arguments = training_step(mesh, layers, width, dtype)
    ahead, kept = (meshbridge.partition(jitted, *arguments, emit="mesh", machine=machine) for machine in (AHEAD, KEPT))
    assert carried(ahead) > carried(kept)
    sent, expected = (communication(module) for module in (ahead, kept))
    assert (sent.wire_bytes, sent.executions) == (expected.wire_bytes, expected.executions)
    executable = meshbridge.compile(jitted, *arguments, machine=AHEAD)
    for found, right in zip(jax.tree.leaves(executable(*arguments)), jax.tree.leaves(step(*arguments)), strict=True):
        wide, other = np.asarray(right, np.float32), np.asarray(found, np.float32)
        np.testing.assert_allclose(other, wide, atol=(2e-2 if dtype == jnp.bfloat16 else 1e-5) * np.abs(wide).max())


def carried(module: ir.Module) -> int:
    """How many values loops carry."""
    return sum(len(loop.results) for loop in find(module.operation, ["stablehlo.while"]))


def test_off_where_collectives_are_left_alone(mesh: jax.sharding.Mesh) -> None:
    jitted, _, arguments = training_step(mesh, 3, 512, jnp.float32)
    ahead, kept = (
        meshbridge.partition(jitted, *arguments, emit="mesh", machine=AHEAD, collectives=choice) for choice in ("on", "off")
    )
    assert carried(ahead) > carried(kept)
