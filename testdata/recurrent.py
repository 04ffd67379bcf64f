"""Loss and gradients of an LSTM under `lax.scan`: batch split over `data`, hidden units over `model`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DATA, MODEL, STEPS, BATCH, WIDTH = 2, 4, 32, 32, 256


def lstm() -> Program:
    """The gradients of the weights are summed over the steps on each device, and over the devices once."""
    split = P(None, None, "model")
    weights = {name: Argument((WIDTH, 4, WIDTH), split, 0.06) for name in ("input", "hidden")}
    weights["bias"] = Argument((4, WIDTH), P(None, "model"), 0.06)
    inputs = Argument((STEPS, BATCH, WIDTH), P(None, "data", None))
    state = BATCH // DATA * WIDTH * 4
    plan = (
        Term("all-gather", MODEL, state, STEPS, "the hidden state before each step"),
        Term("reduce-scatter", MODEL, state, STEPS, "its gradient, partial over the gates"),
        Term("all-reduce", DATA, sum(a.bytes for a in weights.values()) // MODEL, 1, "gradients of the weights' shards"),
    )
    specs = {name: argument.spec for name, argument in weights.items()}
    return Program("lstm", (("data", DATA), ("model", MODEL)), _gradients, (weights, inputs), (P(), specs), plan)


def _gradients(weights: Tree, inputs: jax.Array) -> tuple[jax.Array, Tree]:
    return jax.value_and_grad(_loss)(weights, inputs)


def _loss(weights: Tree, inputs: jax.Array) -> jax.Array:
    def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        hidden, cell = state
        gates = jnp.einsum("bd,dgh->gbh", x, weights["input"]) + jnp.einsum("bd,dgh->gbh", hidden, weights["hidden"])
        new, keep, forget, out = gates + weights["bias"][:, None]
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(keep) * jnp.tanh(new)
        return (jax.nn.sigmoid(out) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((BATCH, WIDTH))
    (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), inputs)
    return jnp.mean(hidden**2)
