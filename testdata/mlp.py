"""The two-layer MLP, weight stationary in one and in two dimensions (Pope et al. 2022, "Efficiently scaling transformer
inference", figures 2a and 2b).
"""

from __future__ import annotations

import jax
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
