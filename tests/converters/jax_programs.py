"""Programs as JAX writes them, with manual parts, groups, loops and callbacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:  # jax 0.12 has no such function: there tests/lit/convert holds the op that it writes
    shard_alike = None

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def collectives(x: jax.Array) -> jax.Array:
    """One of each collective of JAX."""
    y = lax.psum(x, "data") + lax.all_gather(x, "model", axis=1, tiled=True)[:, : x.shape[1]]
    y = lax.ppermute(y, "model", [(i, (i + 1) % 4) for i in range(4)])
    y = lax.all_to_all(y, "data", 0, 1, tiled=True).reshape(x.shape)
    y = lax.psum_scatter(jnp.concatenate([y] * 2), "data", tiled=True)
    return y * lax.axis_index("model")


def all_axes(mesh: Mesh, x: jax.Array) -> jax.Array:
    return jax.shard_map(collectives, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model"), check_vma=False)(x)


def some_axes(mesh: Mesh, x: jax.Array) -> jax.Array:
    def body(x: jax.Array) -> jax.Array:
        return lax.psum(lax.with_sharding_constraint(x, P(None, "model")), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), axis_names={"data"})(x)


def nested(mesh: Mesh, x: jax.Array) -> jax.Array:
    inner = jax.shard_map(lambda x: x * 2, in_specs=P(None, "model"), out_specs=P(None, "model"), axis_names={"model"})
    return jax.shard_map(inner, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})(x)


def alike(mesh: Mesh, x: jax.Array) -> jax.Array:
    x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", P.UNCONSTRAINED)))
    a, b = shard_alike(x, jnp.zeros_like(x))
    return a + b


def dangling(mesh: Mesh, x: jax.Array) -> jax.Array:
    y = jnp.tanh(x)
    lax.with_sharding_constraint(y, NamedSharding(mesh, P("data")))
    return y + 1


def loops(mesh: Mesh, x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        carry = lax.with_sharding_constraint(jnp.tanh(carry), NamedSharding(mesh, P("data", "model")))
        return carry, lax.cond(carry.sum() > 0, lambda c: c.sum(0), lambda c: c.max(0), carry)

    carry, rows = lax.scan(step, x, length=3)
    return carry + rows.sum()


def callback(mesh: Mesh, x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda x: None, x[0, 0])
    return x + 1


PROGRAMS = [all_axes, some_axes, nested, *([alike] if shard_alike else []), dangling, loops, callback]
