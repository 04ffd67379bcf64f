"""Loss and gradients of a vision transformer: data parallel x Megatron, with a class token that makes the sequence uneven."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DATA, MODEL = 2, 4
LAYERS, BATCH, SIDE, PATCH, COLOURS, WIDTH, HEADS, CLASSES = 4, 8, 32, 4, 3, 128, 4, 16
TOKENS = (SIDE // PATCH) ** 2 + 1


def vision_transformer() -> Program:
    """Patches by convolution, positions learned, class read off the first token."""
    parameters = {
        "patch": Argument((PATCH, PATCH, COLOURS, WIDTH), P(), 0.15),
        "class_token": Argument((WIDTH,), P()),
        "positions": Argument((TOKENS, WIDTH), P(), 0.1),
        "layers": [_layer()] * LAYERS,
        "head": Argument((WIDTH, CLASSES), P(), 0.1),
    }
    images = Argument((BATCH, SIDE, SIDE, COLOURS), P("data", None, None, None))
    labels = Argument((BATCH,), P("data"), below=CLASSES)
    activation = BATCH // DATA * TOKENS * WIDTH * 4
    shards = sum(a.bytes // (MODEL if "model" in a.spec else 1) for a in jax.tree.leaves(parameters))
    plan = (
        Term("all-reduce", MODEL, activation, 4 * LAYERS, "Megatron: attention and MLP, forward and backward"),
        Term("all-reduce", DATA, shards, 1, "gradients of every parameter's shard"),
    )
    specs = jax.tree.map(lambda argument: argument.spec, parameters)
    axes = (("data", DATA), ("model", MODEL))
    return Program("vit", axes, _gradients, (parameters, images, labels), (P(), specs), plan)


def _layer() -> dict[str, Argument]:
    return {
        "scales": Argument((2, WIDTH), P(), 0.02, centre=1.0),
        "query_key_value": Argument((WIDTH, 3, HEADS, WIDTH // HEADS), P(None, None, "model", None), 0.09),
        "attention_out": Argument((HEADS, WIDTH // HEADS, WIDTH), P("model", None, None), 0.09),
        "mlp_in": Argument((WIDTH, 4 * WIDTH), P(None, "model"), 0.09),
        "mlp_out": Argument((4 * WIDTH, WIDTH), P("model", None), 0.04),
    }


def _gradients(parameters: Tree, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Tree]:
    return jax.value_and_grad(_loss)(parameters, images, labels)


def _loss(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    patches = jax.lax.conv_general_dilated(images, parameters["patch"], (PATCH, PATCH), "VALID", dimension_numbers=numbers)
    patches = patches.reshape(BATCH, TOKENS - 1, WIDTH)
    first = jnp.broadcast_to(parameters["class_token"], (BATCH, 1, WIDTH))
    x = jnp.concatenate([first, patches], axis=1) + parameters["positions"]
    for layer in parameters["layers"]:
        x = x + _attention(layer, _normalise(x, layer["scales"][0]))
        x = x + jax.nn.gelu(_normalise(x, layer["scales"][1]) @ layer["mlp_in"]) @ layer["mlp_out"]
    logits = x[:, 0] @ parameters["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5) * scale


def _attention(layer: Tree, x: jax.Array) -> jax.Array:
    query, key, value = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"]), 2, 0)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1]))
    return jnp.einsum("bhqk,bkhd,hde->bqe", weights, value, layer["attention_out"])
