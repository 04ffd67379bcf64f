"""A recommender: embedding tables dealt out to the devices, the batch split over them, a small network on what is looked up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, TABLES, ROWS, WIDTH, BATCH = 8, 16, 1024, 64, 512
RATE = 10.0
"""Far too large to train with: a wrong gradient must show in the updated parameters."""


def recommender() -> Program:
    """value_and_grad and SGD update."""
    parameters = {
        "tables": Argument((TABLES, ROWS, WIDTH), P("x", None, None)),
        "into": Argument((TABLES * WIDTH, 128), P(), 0.03),
        "out_of": Argument((128,), P(), 0.1),
    }
    indices = Argument((BATCH, TABLES), P("x", None), below=ROWS)
    clicks = Argument((BATCH,), P("x"))
    found = BATCH * TABLES * WIDTH * 4 // DEVICES
    dense = parameters["into"].bytes + parameters["out_of"].bytes
    plan = (
        Term("all-to-all", DEVICES, indices.bytes // DEVICES, 1, "row numbers, from split by batch to split by table"),
        Term("all-to-all", DEVICES, found, 2, "rows back to their positions in the batch, and their gradients"),
        Term("all-reduce", DEVICES, dense, 1, "gradients of the network"),
    )
    specs = jax.tree.map(lambda argument: argument.spec, parameters)
    return Program("recommender", (("x", DEVICES),), train_step, (parameters, indices, clicks), (P(), specs), plan)


def train_step(parameters: Tree, indices: jax.Array, clicks: jax.Array) -> tuple[jax.Array, Tree]:
    """The loss before the step, and the parameters after it."""
    loss, gradients = jax.value_and_grad(_loss)(parameters, indices, clicks)
    return loss, jax.tree.map(lambda weight, gradient: weight - RATE * gradient, parameters, gradients)


def _loss(parameters: Tree, indices: jax.Array, clicks: jax.Array) -> jax.Array:
    rows = jax.vmap(lambda table, index: table[index], in_axes=(0, 1), out_axes=1)(parameters["tables"], indices)
    hidden = jax.nn.relu(rows.reshape(BATCH, TABLES * WIDTH) @ parameters["into"])
    return jnp.mean((hidden @ parameters["out_of"] - clicks) ** 2)
