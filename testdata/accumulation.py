"""Data-parallel gradients summed over micro-batches under `lax.scan`: one reduction at the end would do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, MICRO_BATCHES, BATCH, WIDTH, HIDDEN = 8, 4, 64, 128, 512


def gradient_accumulation() -> Program:
    """The mean loss and gradients of an MLP."""
    weights = {"into": Argument((WIDTH, HIDDEN), P(), 0.09), "out_of": Argument((HIDDEN, WIDTH), P(), 0.04)}
    batches = Argument((MICRO_BATCHES, BATCH, WIDTH), P(None, "data", None))
    plan = (Term("all-reduce", DEVICES, sum(a.bytes for a in weights.values()), 1, "gradients, after the last micro-batch"),)
    return Program("accumulation", (("data", DEVICES),), _gradients, (weights, batches, batches), (P(), P()), plan)


def _gradients(weights: Tree, inputs: jax.Array, wanted: jax.Array) -> tuple[jax.Array, Tree]:
    def step(total: Tree, batch: tuple[jax.Array, jax.Array]) -> tuple[Tree, None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(_loss)(weights, *batch)), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))
    total, _ = jax.lax.scan(step, zeros, (inputs, wanted))
    loss, gradients = jax.tree.map(lambda value: value / MICRO_BATCHES, total)
    return loss, gradients


def _loss(weights: Tree, x: jax.Array, wanted: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.gelu(x @ weights["into"]) @ weights["out_of"] - wanted) ** 2)
