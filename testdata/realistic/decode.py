"""One decoding step of a llama-like transformer with a cache of 32,768 tokens: split by heads, or along the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned
from testdata.realistic.llama import layer_parameters
from testdata.scaled import normalise

CACHES = {"heads": P("data", None, "model", None), "sequence": P("data", "model", None, None)}


@dataclass(frozen=True)
class Size:
    """`cached` is the number of tokens of the cache, `sequences` are those of each row of the mesh."""

    layers: int = 8
    width: int = 4096
    hidden: int = 11008
    heads: int = 32
    key_heads: int = 8
    cached: int = 32768
    sequences: int = 4

    @property
    def head(self) -> int:
        """The size of one head."""
        return self.width // self.heads


SIZE = Size()


def decode(cached_by: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """The activation of the token at a position, and the caches with that token in them; batch along "data"."""
    axes = common.grid(devices, 4)
    rows = size.sequences * dict(axes)["data"]
    layer = layer_parameters(common.STYLES["dp_tp"], size)
    cache = Argument((rows, size.cached, size.key_heads, size.head), CACHES[cached_by], element="bfloat16")
    caches = [{"key": cache, "value": cache}] * size.layers
    token = Argument((rows, size.width), P("data", None), element="bfloat16")
    pins = {
        "residual": P("data", None),
        "hidden": P("data", "model"),
        "heads": P("data", "model" if cached_by == "heads" else None, None),
    }
    return Program(
        name=f"decode_{cached_by}",
        axes=axes,
        function=partial(_step, size=size, pins=pins if annotated else {}),
        arguments=([layer] * size.layers, caches, token, Argument((), P(), below=size.cached)),
        out_specs=(P("data", None), common.specs(caches)),
        donated=(1,),
    )


def _step(layers: Tree, caches: Tree, x: jax.Array, position: jax.Array, *, size: Size, pins: Pins) -> tuple[jax.Array, Tree]:
    new_caches = []
    for layer, cache in zip(layers, caches, strict=True):
        mixed, new_cache = _attention(layer, cache, normalise(x, layer["attention_scale"]), position, size, pins)
        x = pinned(x + mixed, "residual", pins)
        normal = normalise(x, layer["mlp_scale"])
        hidden = pinned(jax.nn.silu(normal @ layer["gate"]) * (normal @ layer["up"]), "hidden", pins)
        x = pinned(x + hidden @ layer["down"], "residual", pins)
        new_caches.append(new_cache)
    return x, new_caches


def _attention(layer: Tree, cache: Tree, x: jax.Array, position: jax.Array, size: Size, pins: Pins) -> tuple[jax.Array, Tree]:
    query, key, value = (
        pinned((x @ layer[name]).reshape(len(x), -1, size.head), "heads", pins) for name in ("query", "key", "value")
    )
    new_cache = {
        name: jax.lax.dynamic_update_slice_in_dim(cache[name], new[:, None], position, axis=1)
        for name, new in (("key", key), ("value", value))
    }
    grouped = query.reshape(len(x), size.key_heads, -1, size.head)
    scores = jnp.einsum("bkgd,bskd->bkgs", grouped, new_cache["key"]).astype(jnp.float32) * size.head**-0.5
    weights = jax.nn.softmax(jnp.where(jnp.arange(size.cached) <= position, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bkgs,bskd->bkgd", weights, new_cache["value"]).reshape(len(x), size.heads, size.head)
    return pinned(mixed, "heads", pins).reshape(x.shape) @ layer["attention_out"], new_cache
