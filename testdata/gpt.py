"""One training step of a GPT: data parallel x Megatron tensor parallel, tied embedding, plain SGD.

The embedding table is split along its width, as users do who split every matrix on the axis that they contract over.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 256, 8, 1024, 8, 64
DATA, MODEL = 2, 4
RATE = 1.0
"""Far too large to train with: a wrong gradient must show in the updated parameters."""


def gpt(layers: int = 12) -> Program:
    """value_and_grad and SGD update of a GPT with `layers` layers on a 2x4 mesh."""
    parameters = {"embedding": Argument((VOCABULARY, WIDTH), P(None, "model"), 0.02), "layers": [_layer() for _ in range(layers)]}
    batch = Argument((BATCH, LENGTH), P("data", None), below=VOCABULARY)
    specs = jax.tree.map(lambda argument: argument.spec, parameters)
    return Program(
        name=f"gpt{layers}",
        axes=(("data", DATA), ("model", MODEL)),
        function=train_step,
        arguments=(parameters, batch, batch),
        out_specs=(P(), specs),
        ideal=_ideal(layers, parameters),
    )


def _layer() -> dict[str, Argument]:
    into, out_of = P(None, "model"), P("model", None)
    square, hidden = (WIDTH, WIDTH), 4 * WIDTH
    return {
        "attention_scale": Argument((WIDTH,), P(), 0.02, centre=1.0),
        "query_key_value": Argument((WIDTH, 3, HEADS, WIDTH // HEADS), P(None, None, "model", None), 0.06),
        "attention_out": Argument(square, out_of, 0.06),
        "mlp_scale": Argument((WIDTH,), P(), 0.02, centre=1.0),
        "mlp_in": Argument((WIDTH, hidden), into, 0.06),
        "mlp_out": Argument((hidden, WIDTH), out_of, 0.03),
    }


def train_step(parameters: Tree, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Tree]:
    """The loss before the step, and the parameters after it."""
    loss, gradients = jax.value_and_grad(_loss)(parameters, tokens, targets)
    return loss, jax.tree.map(lambda weight, gradient: weight - RATE * gradient, parameters, gradients)


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    x = parameters["embedding"][tokens]
    for layer in parameters["layers"]:
        x = x + _attention(layer, _normalise(x, layer["attention_scale"]))
        x = x + jax.nn.gelu(_normalise(x, layer["mlp_scale"]) @ layer["mlp_in"]) @ layer["mlp_out"]
    logits = x @ parameters["embedding"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -jnp.mean(chosen)


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5) * scale


def _attention(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    query, key, value = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"]), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(batch, length, -1) @ layer["attention_out"]


def _ideal(layers: int, parameters: Any) -> tuple[Term, ...]:
    activation = BATCH // DATA * LENGTH * WIDTH * 4
    table = VOCABULARY * WIDTH * 4 // MODEL
    split = sum(a.bytes // (MODEL if "model" in a.spec else 1) for a in jax.tree.leaves(parameters))
    return (
        Term("all-reduce", MODEL, activation, 4 * layers, "Megatron: attention and MLP, forward and backward"),
        Term("all-reduce", DATA, split, 1, "gradients of every parameter's shard"),
        Term("all-gather", MODEL, activation, 1, "embedded tokens, from sharded along the width to replicated"),
        Term("all-to-all", MODEL, table, 2, "the tied table to split along the vocabulary for the logits, its gradient back"),
        Term("all-reduce", MODEL, activation, 1, "gradient of the last activation, partial over the vocabulary"),
    )
