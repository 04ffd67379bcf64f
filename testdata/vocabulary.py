"""Embedding and cross-entropy with both tables split along the vocabulary, and the gradients of both tables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

DATA, MODEL = 2, 4
BATCH, LENGTH, WIDTH, VOCABULARY = 8, 64, 128, 4096


def vocabulary_cross_entropy() -> Program:
    """Loss and gradients on a 2x4 mesh."""
    table = Argument((VOCABULARY, WIDTH), P("model", None), 0.1)
    output = Argument((WIDTH, VOCABULARY), P(None, "model"), 0.1)
    batch = Argument((BATCH, LENGTH), P("data", None), below=VOCABULARY)
    tokens = BATCH // DATA * LENGTH * 4
    plan = (
        Term("all-reduce", MODEL, tokens * WIDTH, 1, "embedded tokens, partial over the vocabulary"),
        Term("all-reduce", MODEL, tokens * WIDTH, 1, "their gradient, partial over the vocabulary"),
        Term("all-reduce", MODEL, tokens, 3, "per token: largest logit, sum of exponentials, chosen logit"),
        Term("all-reduce", DATA, (table.bytes + output.bytes) // MODEL, 1, "gradients of the tables' shards"),
    )
    specs = (table.spec, output.spec)
    return Program(
        "vocab_ce", (("data", DATA), ("model", MODEL)), _gradients, ((table, output), batch, batch), (P(), specs), plan
    )


def _gradients(
    tables: tuple[jax.Array, jax.Array], tokens: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return jax.value_and_grad(_loss)(tables, tokens, targets)


def _loss(tables: tuple[jax.Array, jax.Array], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    table, output = tables
    logits = table[tokens] @ output
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))
