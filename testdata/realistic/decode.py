"""One decoding step of a llama-like transformer with a cache of 32,768 tokens: split by heads, or along the sequence."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned, scale, weight
from testdata.scaled import normalise

LAYERS, WIDTH, HIDDEN, HEADS, KEY_HEADS, CACHED, SEQUENCES = 8, 4096, 11008, 32, 8, 32768, 4
SIZE = WIDTH // HEADS
CACHES = {"heads": P("data", None, "model", None), "sequence": P("data", "model", None, None)}


def decode(cached_by: str, devices: int, *, annotated: bool) -> Program:
    """The activation of the token at a position, and the caches with that token in them; batch along "data"."""
    axes = common.grid(devices, 4)
    rows = SEQUENCES * dict(axes)["data"]
    into, out_of = P(None, "model"), P("model", None)
    layer = {
        "attention_scale": scale(WIDTH),
        "query": weight(WIDTH, WIDTH, spec=into),
        "key": weight(WIDTH, KEY_HEADS * SIZE, spec=into),
        "value": weight(WIDTH, KEY_HEADS * SIZE, spec=into),
        "attention_out": weight(WIDTH, WIDTH, spec=out_of),
        "mlp_scale": scale(WIDTH),
        "gate": weight(WIDTH, HIDDEN, spec=into),
        "up": weight(WIDTH, HIDDEN, spec=into),
        "down": weight(HIDDEN, WIDTH, spec=out_of),
    }
    cache = Argument((rows, CACHED, KEY_HEADS, SIZE), CACHES[cached_by], element="bfloat16")
    caches = [{"key": cache, "value": cache}] * LAYERS
    token = Argument((rows, WIDTH), P("data", None), element="bfloat16")
    pins = {
        "residual": P("data", None),
        "hidden": P("data", "model"),
        "heads": P("data", "model" if cached_by == "heads" else None, None),
    }
    return Program(
        name=f"decode_{cached_by}",
        axes=axes,
        function=partial(_step, pins=pins if annotated else {}),
        arguments=([layer] * LAYERS, caches, token, Argument((), P(), below=CACHED)),
        out_specs=(P("data", None), common.specs(caches)),
        donated=(1,),
    )


def _step(layers: Tree, caches: Tree, x: jax.Array, position: jax.Array, *, pins: Pins) -> tuple[jax.Array, Tree]:
    new_caches = []
    for layer, cache in zip(layers, caches, strict=True):
        mixed, new_cache = _attention(layer, cache, normalise(x, layer["attention_scale"]), position, pins)
        x = pinned(x + mixed, "residual", pins)
        normal = normalise(x, layer["mlp_scale"])
        hidden = pinned(jax.nn.silu(normal @ layer["gate"]) * (normal @ layer["up"]), "hidden", pins)
        x = pinned(x + hidden @ layer["down"], "residual", pins)
        new_caches.append(new_cache)
    return x, new_caches


def _attention(layer: Tree, cache: Tree, x: jax.Array, position: jax.Array, pins: Pins) -> tuple[jax.Array, Tree]:
    query, key, value = (pinned((x @ layer[name]).reshape(len(x), -1, SIZE), "heads", pins) for name in ("query", "key", "value"))
    new_cache = {
        name: jax.lax.dynamic_update_slice_in_dim(cache[name], new[:, None], position, axis=1)
        for name, new in (("key", key), ("value", value))
    }
    grouped = query.reshape(len(x), KEY_HEADS, HEADS // KEY_HEADS, SIZE)
    scores = jnp.einsum("bkgd,bskd->bkgs", grouped, new_cache["key"]).astype(jnp.float32) * SIZE**-0.5
    weights = jax.nn.softmax(jnp.where(jnp.arange(CACHED) <= position, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bkgs,bskd->bkgd", weights, new_cache["value"]).reshape(len(x), HEADS, SIZE)
    return pinned(mixed, "heads", pins).reshape(x.shape) @ layer["attention_out"], new_cache
