"""A training step of a small transformer, exported with the shardings that two plans differ by."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from tests.operations.differential import device_mesh

WIDTH, TOKENS = 64, 512


def _loss(params: Any, x: jax.Array) -> jax.Array:
    for number, layer in enumerate(params["layers"]):
        with jax.named_scope(f"layer_{number}"):
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    with jax.named_scope("head"):
        return jnp.square(x @ params["head"]).mean()


def _step(params: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(_loss)(params, x)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@cache
def exported(up: Any = (None, "b"), head: Any = (None, None), layers: int = 2, width: int = WIDTH) -> export.Exported:
    """A training step, its weights sharded so."""
    shapes = {"layers": [{"up": (width, 4 * width), "down": (4 * width, width)}] * layers, "head": (width, 8 * width)}
    specs = {"layers": [{"up": up, "down": up[::-1]}] * layers, "head": head}
    is_tuple = {"is_leaf": lambda leaf: type(leaf) is tuple}
    mesh = device_mesh((2, 4))
    params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, **is_tuple)
    held = jax.tree.map(lambda spec: NamedSharding(mesh, PartitionSpec(*spec)), specs, **is_tuple)
    jitted = jax.jit(_step, in_shardings=(held, NamedSharding(mesh, PartitionSpec("a"))), out_shardings=(None, held))
    return export.export(jitted)(params, jax.ShapeDtypeStruct((TOKENS, width), jnp.float32))
