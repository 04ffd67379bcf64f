"""One decoding step of a transformer with a key-value cache: the cache split by heads, or along the sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, LAYERS, BATCH, WIDTH, HEADS, LENGTH = 8, 4, 8, 256, 8, 256
AXES = (("m", DEVICES),)
SIZE = WIDTH // HEADS
ROW = BATCH * WIDTH * 4
MEGATRON = Term("all-reduce", DEVICES, ROW, 2 * LAYERS, "Megatron: attention and MLP")


def decode_by_heads() -> Program:
    """Each device holds its heads' cache: attention is local."""
    return _decode("decode_heads", P(None, None, "m", None), (MEGATRON,))


def decode_by_sequence() -> Program:
    """Each device holds a stretch of the cache for all heads."""
    plan = (
        MEGATRON,
        Term("all-gather", DEVICES, ROW, 3 * LAYERS, "the new query, key and value, from sharded by heads to replicated"),
        Term("all-reduce", DEVICES, BATCH * HEADS * 4, 2 * LAYERS, "softmax: largest score and sum of exponentials"),
        Term("reduce-scatter", DEVICES, ROW, LAYERS, "mixed values, partial over the sequence, to split by heads"),
    )
    return _decode("decode_seq", P(None, "m", None, None), plan)


def _decode(name: str, cache_spec: P, plan: tuple[Term, ...]) -> Program:
    into, out_of = P(None, "m"), P("m", None)
    square, hidden = (WIDTH, WIDTH), 4 * WIDTH
    layer = {
        "scales": Argument((2, WIDTH), P(), 0.02, centre=1.0),
        "query": Argument(square, into, 0.06),
        "key": Argument(square, into, 0.06),
        "value": Argument(square, into, 0.06),
        "attention_out": Argument(square, out_of, 0.06),
        "mlp_in": Argument((WIDTH, hidden), into, 0.06),
        "mlp_out": Argument((hidden, WIDTH), out_of, 0.03),
    }
    cache = Argument((BATCH, LENGTH, HEADS, SIZE), cache_spec)
    caches = [{"key": cache, "value": cache}] * LAYERS
    arguments = ([layer] * LAYERS, caches, Argument((BATCH, WIDTH), P()), Argument((), P(), below=LENGTH))
    return Program(name, AXES, step, arguments, (P(), cache_spec), plan)


def step(layers: Tree, caches: Tree, x: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
    """The activation of the token at `position`, and the caches with that token in them."""
    new_caches = []
    for layer, cache in zip(layers, caches, strict=True):
        mixed, new_cache = _attention(layer, cache, _normalise(x, layer["scales"][0]), position)
        x = x + mixed
        x = x + jax.nn.gelu(_normalise(x, layer["scales"][1]) @ layer["mlp_in"]) @ layer["mlp_out"]
        new_caches.append(new_cache)
    return x, new_caches


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def _attention(layer: Tree, cache: Tree, x: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
    query, key, value = ((x @ layer[name]).reshape(BATCH, HEADS, SIZE) for name in ("query", "key", "value"))
    here = (jnp.arange(LENGTH) == position)[None, :, None, None]
    keys, values = (jnp.where(here, new[:, None], old) for new, old in ((key, cache["key"]), (value, cache["value"])))
    scores = jnp.einsum("bhd,bshd->bhs", query, keys) / jnp.sqrt(SIZE)
    weights = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9))
    mixed = jnp.einsum("bhs,bshd->bhd", weights, values)
    return mixed.reshape(BATCH, WIDTH) @ layer["attention_out"], {"key": keys, "value": values}
