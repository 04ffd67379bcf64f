"""The memory that jitted functions need on CPUs, beside `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.runtime import xla

LAYERS, ROWS, WIDTH, HIDDEN = 10, 2048, 64, 128
MOST = 1.1
"""Times the temporaries of what XLA partitions."""
LEAST_GAIN = 0.9
"""Times those in the order in which the gradients wait."""


def step(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Unrolled layers that are computed again backwards; the norm of all gradients scales each."""

    @jax.checkpoint
    def layer(h: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return h + jnp.tanh(jnp.tanh(h) @ up) @ down

    def loss(weights: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        h = x
        for up, down in weights:
            h = layer(h, up, down)
        return (h * h).mean()

    gradients = jax.grad(loss)(weights)
    norm = jnp.sqrt(sum(jnp.vdot(each, each) for each in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda weight, gradient: weight - gradient / norm, weights, gradients)


def test_gradients_of_weights_do_not_wait_for_the_backward_pass(mesh: Mesh) -> None:
    """What they are computed of would wait with them."""
    first, second = mesh.axis_names
    up, down, rows = (NamedSharding(mesh, spec) for spec in (P(first, second), P(second, first), P(first, None)))
    shardings = [(up, down)] * LAYERS
    weights = [(jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32), jax.ShapeDtypeStruct((HIDDEN, WIDTH), jnp.float32))] * LAYERS
    options = {"in_shardings": (shardings, rows), "out_shardings": shardings, "donate_argnums": 0}
    arguments = weights, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    lowered, plain = (jit(step, **options).lower(*arguments) for jit in (meshbridge.jit, jax.jit))
    temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
    depth_first = xla.own_options(jax.devices()[0], ordered=False)
    assert temporaries <= LEAST_GAIN * lowered.compile(depth_first).memory_analysis().temp_size_in_bytes
    assert temporaries <= MOST * plain.compile().memory_analysis().temp_size_in_bytes
