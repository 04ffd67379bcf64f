"""Loss and gradients in mixed precision: parameters fully sharded in float32, used in bfloat16."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, LAYERS, BATCH, WIDTH, HIDDEN = 8, 4, 64, 256, 1024


def mixed_precision() -> Program:
    """What is gathered and reduced can be bfloat16: half the bytes of the parameters."""
    split = P("data", None)
    shapes = {"into": (WIDTH, HIDDEN), "out_of": (HIDDEN, WIDTH)}
    weights = [{name: Argument(shape, split, shape[0] ** -0.5) for name, shape in shapes.items()}] * LAYERS
    x = Argument((BATCH, WIDTH), split)
    half = sum(argument.bytes for argument in jax.tree.leaves(weights)) // 2
    plan = (
        Term("all-gather", DEVICES, half, 1, "parameters where they are used, in bfloat16"),
        Term("reduce-scatter", DEVICES, half, 1, "gradients, in bfloat16"),
    )
    # bfloat16 has 8 bits: sums in another order differ in the last two.
    return Program("mixed_fsdp", (("data", DEVICES),), _gradients, (weights, x, x), (P(), split), plan, tolerance=0.03)


def _gradients(weights: Tree, x: jax.Array, wanted: jax.Array) -> tuple[jax.Array, Tree]:
    return jax.value_and_grad(_loss)(weights, x, wanted)


def _loss(weights: Tree, x: jax.Array, wanted: jax.Array) -> jax.Array:
    x = x.astype(jnp.bfloat16)
    for layer in weights:
        into, out_of = (layer[name].astype(jnp.bfloat16) for name in ("into", "out_of"))
        x = x + jax.nn.relu(x @ into) @ out_of
    return jnp.mean((x.astype(jnp.float32) - wanted) ** 2)
