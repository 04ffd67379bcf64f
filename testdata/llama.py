"""One training step of a llama-style decoder: rotary positions, grouped-query attention, SwiGLU, RMS norm, plain SGD.

Parameters are fully sharded over `data` (FSDP), or over `data` and `model` (FSDP x tensor parallel); the layers stand one
after the other, or stacked under `lax.scan`. Activations may be pinned to the batch by constraints.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

LAYERS, WIDTH, HIDDEN, HEADS, KEY_HEADS, VOCABULARY, BATCH, LENGTH = 4, 256, 768, 8, 4, 1024, 16, 64
RATE = 1.0
"""Far too large to train with: a wrong gradient must show in the updated parameters."""


def llama(*, tensor_parallel: bool = False, scan: bool = False, annotated: bool = False) -> Program:
    """value_and_grad and SGD update; mesh 8x1, or 4x2 when tensor parallel."""
    data, model = (4, 2) if tensor_parallel else (8, 1)
    layer = _layer(tensor_parallel)
    parameters = {
        "embedding": Argument((VOCABULARY, WIDTH), P("model", "data") if tensor_parallel else P("data", None), 0.02),
        "layers": jax.tree.map(_stacked, layer) if scan else [layer] * LAYERS,
        "final_scale": Argument((WIDTH,), P("data"), 0.02, centre=1.0),
        "output": Argument((WIDTH, VOCABULARY), P("data", "model"), 0.06),
    }
    batch = Argument((BATCH, LENGTH), P("data", None), below=VOCABULARY)
    style = "fsdp_tp" if tensor_parallel else "fsdp"
    return Program(
        name=f"llama_{'scan_' if scan else ''}{style}{'_annot' if annotated else ''}",
        axes=(("data", data), ("model", model)),
        function=partial(train_step, scan=scan, annotated=annotated),
        arguments=(parameters, batch, batch),
        out_specs=(P(), jax.tree.map(lambda argument: argument.spec, parameters)),
        ideal=_ideal(parameters, data, model, scan),
    )


def _layer(tensor_parallel: bool) -> dict[str, Argument]:
    into, out_of = (P("data", "model"), P("model", "data")) if tensor_parallel else (P("data", None), P("data", None))
    keys = WIDTH // HEADS * KEY_HEADS
    scale = Argument((WIDTH,), P("data"), 0.02, centre=1.0)
    return {
        "attention_scale": scale,
        "query": Argument((WIDTH, WIDTH), into, 0.06),
        "key": Argument((WIDTH, keys), into, 0.06),
        "value": Argument((WIDTH, keys), into, 0.06),
        "attention_out": Argument((WIDTH, WIDTH), out_of, 0.06),
        "mlp_scale": scale,
        "gate": Argument((WIDTH, HIDDEN), into, 0.06),
        "up": Argument((WIDTH, HIDDEN), into, 0.06),
        "down": Argument((HIDDEN, WIDTH), out_of, 0.03),
    }


def _stacked(argument: Argument) -> Argument:
    return replace(argument, shape=(LAYERS, *argument.shape), spec=P(None, *argument.spec))


def train_step(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, scan: bool, annotated: bool) -> tuple[jax.Array, Tree]:
    """The loss before the step, and the parameters after it."""
    loss, gradients = jax.value_and_grad(partial(_loss, scan=scan, annotated=annotated))(parameters, tokens, targets)
    return loss, jax.tree.map(lambda weight, gradient: weight - RATE * gradient, parameters, gradients)


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, scan: bool, annotated: bool) -> jax.Array:
    def pinned(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, P("data", None, None)) if annotated else x

    def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
        x = pinned(x + _attention(layer, _normalise(x, layer["attention_scale"])))
        return pinned(x + _swiglu(layer, _normalise(x, layer["mlp_scale"]))), None

    x = pinned(parameters["embedding"][tokens])
    if scan:
        x, _ = jax.lax.scan(block, x, parameters["layers"])
    else:
        for layer in parameters["layers"]:
            x, _ = block(x, layer)
    logits = _normalise(x, parameters["final_scale"]) @ parameters["output"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def _swiglu(layer: Tree, x: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary positions on [batch, length, heads, size]."""
    _, length, _, size = x.shape
    frequency = 1.0 / 10000 ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _attention(layer: Tree, x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    query = _rotated((x @ layer["query"]).reshape(batch, length, HEADS, -1))
    key = _rotated((x @ layer["key"]).reshape(batch, length, KEY_HEADS, -1))
    value = (x @ layer["value"]).reshape(batch, length, KEY_HEADS, -1)
    key, value = (jnp.repeat(shared, HEADS // KEY_HEADS, axis=2) for shared in (key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(batch, length, -1) @ layer["attention_out"]


def _ideal(parameters: Tree, data: int, model: int, scan: bool) -> tuple[Term, ...]:
    """Parameters gathered where they are used, each gradient reduce-scattered; a loop's parameters again in the backward loop."""

    def local_bytes(tree: Tree) -> int:
        return sum(a.bytes // (model if "model" in a.spec else 1) for a in jax.tree.leaves(tree))

    everything, layers = local_bytes(parameters), local_bytes(parameters["layers"])
    activation = BATCH // data * LENGTH * WIDTH * 4
    plan = (
        Term("all-gather", data, everything, 1, "parameters where they are used"),
        Term("all-gather", data, layers, int(scan), "the layers' parameters again in the backward loop"),
        Term("reduce-scatter", data, everything, 1, "gradients"),
    )
    if model == 1:
        return plan
    return (
        *plan,
        Term("all-reduce", model, activation, 4 * LAYERS, "Megatron: attention and MLP, forward and backward"),
        Term("all-reduce", model, activation, 1, "embedded tokens, partial over the vocabulary"),
        Term("all-reduce", model, activation, 1, "gradient of the last activation, partial over the vocabulary"),
    )
