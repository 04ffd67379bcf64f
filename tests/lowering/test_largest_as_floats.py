"""Maxima over devices that may lose a NaN: in softmaxes and the like, whose numbers are those of one device, NaN included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge

P = PartitionSpec
Function = Callable[[jax.Array], Any]


def cross_entropy(x: jax.Array) -> jax.Array:
    labels = jnp.arange(len(x)) * 5 % x.shape[-1]
    picked = jnp.where(jnp.arange(x.shape[-1]) == labels[:, None], x, 0).sum(-1)
    return jax.nn.logsumexp(x, axis=-1) - picked


def attention(x: jax.Array) -> jax.Array:
    scores = jnp.where(jnp.arange(x.shape[-1]) < 29, x, -1e9)
    return jax.nn.softmax(scores) @ jnp.sin(jnp.arange(x.shape[-1] * 16.0)).reshape(-1, 16).astype(x.dtype)


FOLLOWED: dict[str, Function] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1),
    "cross_entropy": cross_entropy,
    "gradients": jax.grad(lambda x: cross_entropy(x).astype(jnp.float32).sum()),
    "attention": attention,
    "softmin": lambda x: jnp.exp(x.min(-1, keepdims=True) - x) / jnp.exp(x.min(-1, keepdims=True) - x).sum(-1, keepdims=True),
}
"""Of which a NaN is in all that a row gives."""

OTHERS: dict[str, Function] = {
    "maximum": lambda x: x.max(-1),
    "argmax": lambda x: x.argmax(-1),
    "exponentials": lambda x: jnp.exp(x - x.max(-1, keepdims=True)),
    "masked": lambda x: jnp.where(x > 0, jnp.exp(x - x.max(-1, keepdims=True)), 0).sum(-1),
    "counted": lambda x: (x - x.max(-1, keepdims=True) > -1).sum(-1),
    "scaled": lambda x: x / x.max(-1, keepdims=True),
    "batch": lambda x: jnp.exp(x - x.max(-1, keepdims=True)).sum(),
    "added": lambda x: jax.nn.softmax(x) + 0 * x.max(-1, keepdims=True)[::-1],
    "returned": lambda x: (jax.nn.softmax(x), x.max(-1)),
}
"""Of which it would be lost somewhere, or may be for all that is looked at."""


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def drawn(dtype: Any, length: int) -> jax.Array:
    """Rows without NaN, with one, with one in each shard, all NaN, and with infinities."""
    x = np.array(jax.random.normal(jax.random.key(0), (8, length)), np.float32)
    x[1, 3] = x[2, -1] = x[5, 0] = np.nan
    x[3, :: length // 4] = np.nan
    x[4] = np.nan
    x[6, 2], x[7, 9] = np.inf, -np.inf
    return jnp.asarray(x, dtype)


def check(function: Function, mesh: jax.sharding.Mesh, dtype: Any, length: int = 32) -> str:
    """Compares with one device; the program of each device."""
    x = drawn(dtype, length)
    sharding = NamedSharding(mesh, P("data", "model"))
    jitted = jax.jit(
        lambda x: function(jax.lax.with_sharding_constraint(x, sharding)), in_shardings=NamedSharding(mesh, P("data"))
    )
    program = meshbridge.partition(jitted, x, emit="mesh", machine="h100")  # of which no collectives are combined
    found = meshbridge.compile(program)(x)
    coarse = 1e-5 if dtype == jnp.float32 else 4 * float(jnp.finfo(dtype).eps)
    for ours, right in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(right, np.float32), rtol=coarse, atol=coarse)
    return str(meshbridge.partition(jitted, x, emit="local", machine="h100"))


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_rows_are_nan_as_on_one_device(name: str, dtype: Any, mesh: jax.sharding.Mesh) -> None:
    assert "bitcast_convert" not in check(FOLLOWED[name], mesh, dtype)


@pytest.mark.parametrize("name", OTHERS)
def test_what_would_lose_a_nan_keeps_it(name: str, mesh: jax.sharding.Mesh) -> None:
    assert "bitcast_convert" in check(OTHERS[name], mesh, jnp.float32)


@pytest.mark.parametrize("name", [*FOLLOWED, *OTHERS])
def test_uneven_rows(name: str, mesh: jax.sharding.Mesh) -> None:
    check((FOLLOWED | OTHERS)[name], mesh, jnp.float32, length=30)
