"""The two-layer MLP, weight stationary in one and in two dimensions (Pope et al. 2022, "Efficiently scaling transformer
inference", figures 2a and 2b), and as a training step on a mesh of any size.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

BATCH, LENGTH, WIDTH, HIDDEN = 8, 16, 512, 2048
AXES = (("x", 2), ("y", 2), ("z", 2))
ALL = ("x", "y", "z")
ACTIVATION = BATCH * LENGTH * WIDTH * 4


def weight_stationary_1d() -> Program:
    """The weights are split along the hidden dimension over all axes."""
    plan = (
        Term("all-gather", 8, ACTIVATION, 1, "the input, from sharded along its width to replicated"),
        Term("reduce-scatter", 8, ACTIVATION, 1, "the output, partial over the hidden dimension"),
    )
    return _mlp("mlp_ws1d", P(None, ALL), P(ALL, None), plan)


def weight_stationary_2d() -> Program:
    """The weights are split along both dimensions: width over x, hidden over y and z."""
    hidden = BATCH * LENGTH * HIDDEN * 4 // 4
    plan = (
        Term("all-gather", 4, ACTIVATION // 2, 1, "the input over y, z"),
        Term("reduce-scatter", 2, hidden, 1, "the hidden layer, partial over x"),
        Term("all-gather", 2, hidden, 1, "the hidden layer over x"),
        Term("reduce-scatter", 4, ACTIVATION // 2, 1, "the output, partial over y, z"),
    )
    return _mlp("mlp_ws2d", P("x", ("y", "z")), P(("y", "z"), "x"), plan)


def _mlp(name: str, into: P, out_of: P, plan: tuple[Term, ...]) -> Program:
    activation = P(None, None, ALL)
    arguments = (
        Argument((BATCH, LENGTH, WIDTH), activation),
        Argument((WIDTH, HIDDEN), into, WIDTH**-0.5),
        Argument((HIDDEN, WIDTH), out_of, HIDDEN**-0.5),
    )
    return Program(name, AXES, forward, arguments, activation, plan)


def forward(x: jax.Array, into: jax.Array, out_of: jax.Array) -> jax.Array:
    """gelu(x W_in) W_out."""
    return jax.nn.gelu(x @ into) @ out_of


def trained_on(data: int, model: int) -> Program:
    """Loss and gradients on a `data` x `model` mesh, two rows of the batch and two hidden units on each device."""
    batch, hidden = 2 * data, 2 * model
    activation = Argument((batch, WIDTH), P("data", None))
    into = Argument((WIDTH, hidden), P(None, "model"), WIDTH**-0.5)
    out_of = Argument((hidden, WIDTH), P("model", None), hidden**-0.5)
    plan = (
        Term("all-reduce", model, activation.bytes // data, 1, "Megatron: the output"),
        Term("all-reduce", data, (into.bytes + out_of.bytes) // model, 1, "gradients of the weights' shards"),
    )
    axes = (("data", data), ("model", model))
    arguments = (into, out_of, activation, activation)
    return Program(f"mlp_{data}x{model}", axes, _gradients, arguments, (P(), (into.spec, out_of.spec)), plan)


def _gradients(into: jax.Array, out_of: jax.Array, x: jax.Array, wanted: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def loss(into: jax.Array, out_of: jax.Array) -> jax.Array:
        return jnp.mean((forward(x, into, out_of) - wanted) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(into, out_of)
