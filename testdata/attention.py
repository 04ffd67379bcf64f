"""Attention with the sequence split over all devices (context parallelism): forward, and forward and backward.

The plan is Ulysses: all-to-alls move the split from the sequence to the heads and back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

DEVICES, BATCH, LENGTH, HEADS, SIZE = 8, 2, 512, 8, 32
AXES = (("s", DEVICES),)
SEQUENCE = P(None, "s", None, None)
TENSOR = Argument((BATCH, LENGTH, HEADS, SIZE), SEQUENCE)


def attention_forward() -> Program:
    """softmax(Q Kᵀ) V."""
    plan = (Term("all-to-all", DEVICES, TENSOR.bytes // DEVICES, 4, "q, k, v from sequence to heads; the output back"),)
    return Program("cp_attn_fwd", AXES, attention, (TENSOR,) * 3, SEQUENCE, plan)


def attention_gradient() -> Program:
    """A weighted sum of the attention's output, and its gradients by q, k and v."""
    why = "q, k, v and the weights from sequence to heads; the three gradients back"
    plan = (Term("all-to-all", DEVICES, TENSOR.bytes // DEVICES, 7, why),)
    return Program("cp_attn_grad", AXES, _gradients, (TENSOR,) * 4, (P(), (SEQUENCE,) * 3), plan)


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Unmasked attention on [batch, length, heads, size]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def _gradients(query: jax.Array, key: jax.Array, value: jax.Array, weights: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return jax.value_and_grad(lambda *qkv: jnp.sum(attention(*qkv) * weights), argnums=(0, 1, 2))(query, key, value)
