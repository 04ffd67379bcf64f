"""One Adam step with ZeRO-1: parameters whole on every device, both moments split over the data axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, LAYERS, BATCH, WIDTH, HIDDEN = 8, 4, 1024, 256, 1024
RATE, FIRST, SECOND, SMALL = 1e-2, 0.9, 0.999, 1e-8


def adam_zero1() -> Program:
    """value_and_grad and Adam update of a residual MLP."""
    shapes = {"scale": (WIDTH,), "into": (WIDTH, HIDDEN), "out_of": (HIDDEN, WIDTH)}
    parameters = [{name: Argument(shape, P(), 0.05) for name, shape in shapes.items()}] * LAYERS
    # A second moment is a square; 1 + 0.1 n keeps the example's positive.
    first = [{name: Argument(shape, P("data"), 0.01) for name, shape in shapes.items()}] * LAYERS
    second = [{name: Argument(shape, P("data"), 0.1, centre=1.0) for name, shape in shapes.items()}] * LAYERS
    batch = Argument((BATCH, WIDTH), P("data", None))
    size = sum(argument.bytes for argument in jax.tree.leaves(parameters))
    plan = (
        Term("reduce-scatter", DEVICES, size, 1, "gradients, to the shards of the moments"),
        Term("all-gather", DEVICES, size, 1, "new parameters"),
    )
    arguments = (parameters, first, second, batch, batch)
    return Program("adam_zero1", (("data", DEVICES),), train_step, arguments, (P(), P(), P("data"), P("data")), plan)


def train_step(parameters: Tree, first: Tree, second: Tree, x: jax.Array, wanted: jax.Array) -> tuple[Tree, ...]:
    """The loss before the step; parameters and both moments after it."""
    loss, gradients = jax.value_and_grad(_loss)(parameters, x, wanted)
    first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, first, gradients)
    second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, second, gradients)
    parameters = jax.tree.map(lambda p, m, v: p - RATE * m / (jnp.sqrt(v) + SMALL), parameters, first, second)
    return loss, parameters, first, second


def _loss(parameters: Tree, x: jax.Array, wanted: jax.Array) -> jax.Array:
    for layer in parameters:
        normal = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        x = x + jax.nn.relu((normal * (1 + layer["scale"])) @ layer["into"]) @ layer["out_of"]
    return jnp.mean((x - wanted) ** 2)
