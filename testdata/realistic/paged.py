"""A llama-like transformer whose keys and values are in pages: a chunk of a prompt, or one token of each sequence.

Each row of the mesh serves sequences of its own from a pool of pages of its own, whose heads are split along "model". A table has
the numbers of each sequence's pages; the pools are donated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, pinned
from testdata.realistic.llama import layer_parameters
from testdata.scaled import normalise

PINS = {"residual": P(), "hidden": P(None, None, "model"), "heads": P(None, None, "model", None)}
"""Of the activations of one row of the mesh: [sequences, tokens, ...]. That of the rows is added by `jax.vmap`."""


@dataclass(frozen=True)
class Size:
    """The sizes of a llama with 7 billion parameters, but for the layers.

    `page` is the number of tokens of a page, `context` that of a sequence's pages, `chunk` that of a prompt's tokens in a step;
    `prompts` and `sequences` are those of each row of the mesh.
    """

    width: int = 4096
    hidden: int = 11008
    heads: int = 32
    key_heads: int = 8
    layers: int = 8
    page: int = 64
    context: int = 128
    chunk: int = LENGTH
    prompts: int = 1
    sequences: int = 16

    @property
    def head(self) -> int:
        """The size of one head."""
        return self.width // self.heads


SIZE = Size()

Write = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""Of a pool, the table, the number of earlier tokens of each sequence and keys or values of the new ones: the pool with them."""


def paged_prefill(devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """The activations of a chunk of each prompt, whose earlier chunks are in whole pages, and the pools with that chunk in
    them."""
    earlier = size.context - size.chunk // size.page + 1
    shape = (size.prompts, size.chunk)
    return _program("paged_prefill", shape, earlier, size, devices, write=_write_pages, unit=size.page, annotated=annotated)


def paged_decode(devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """The activation of one token of each sequence, at a position of its own, and the pools with that token in them."""
    earlier = size.context * size.page
    return _program("paged_decode", (size.sequences, 1), earlier, size, devices, write=_write_token, unit=1, annotated=annotated)


def _program(
    name: str, shape: tuple[int, int], earlier: int, size: Size, devices: int, *, write: Write, unit: int, annotated: bool
) -> Program:
    """Of new tokens of that `shape` for each row of the mesh, with fewer than `earlier` times `unit` tokens before them."""
    rows, tokens = shape
    axes = common.grid(devices, 4)
    replicas = dict(axes)["data"]
    pages = rows * size.context
    pool = Argument(
        (replicas, pages, size.page, size.key_heads, size.head), P("data", None, None, "model", None), element="bfloat16"
    )
    pools = [{"key": pool, "value": pool}] * size.layers
    x = Argument((replicas, rows, tokens, size.width), P("data", None, None, None), element="bfloat16")
    table = Argument((replicas, rows, size.context), P("data", None, None), below=pages, distinct=True)
    before = Argument((replicas, rows), P("data", None), below=earlier)
    layer = layer_parameters(common.STYLES["dp_tp"], size)
    step = partial(_step, write=write, unit=unit, size=size, pins=PINS if annotated else {})
    return Program(
        name=name,
        axes=axes,
        function=jax.vmap(step, in_axes=(None, 0, 0, 0, 0), spmd_axis_name="data"),
        arguments=([layer] * size.layers, pools, x, table, before),
        out_specs=(x.spec, common.specs(pools)),
        donated=(1,),
    )


def _step(
    layers: Tree,
    pools: Tree,
    x: jax.Array,
    table: jax.Array,
    earlier: jax.Array,
    *,
    write: Write,
    unit: int,
    size: Size,
    pins: Pins,
) -> tuple[jax.Array, Tree]:
    """Of one row of the mesh: `x` is [sequences, tokens, width], `table` [sequences, pages of a context]."""
    before = earlier * unit
    new_pools = []
    for layer, pool in zip(layers, pools, strict=True):
        normal = normalise(x, layer["attention_scale"])
        mixed, new_pool = _attention(layer, pool, normal, table, before, write, size, pins)
        x = pinned(x + mixed, "residual", pins)
        x = pinned(x + common.gated(layer, normalise(x, layer["mlp_scale"]), jax.nn.silu, pins), "residual", pins)
        new_pools.append(new_pool)
    return x, new_pools


def _attention(
    layer: Tree, pool: Tree, x: jax.Array, table: jax.Array, before: jax.Array, write: Write, size: Size, pins: Pins
) -> tuple[jax.Array, Tree]:
    query, key, value = (
        pinned((x @ layer[name]).reshape(*x.shape[:2], -1, size.head), "heads", pins) for name in ("query", "key", "value")
    )
    positions = before[:, None] + jnp.arange(x.shape[1])
    key = _rotated(key, positions)
    new_pool = {name: write(pool[name], table, before, new) for name, new in (("key", key), ("value", value))}
    keys, values = (new_pool[name][table].reshape(len(x), -1, size.key_heads, size.head) for name in ("key", "value"))
    grouped = _rotated(query, positions).reshape(*x.shape[:2], size.key_heads, -1, size.head)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, keys).astype(jnp.float32) * size.head**-0.5
    seen = jnp.arange(size.context * size.page) <= positions[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bkgqs,bskd->bqkgd", weights, values).reshape(*x.shape[:2], size.heads, size.head)
    return pinned(mixed, "heads", pins).reshape(x.shape) @ layer["attention_out"], new_pool


def _write_pages(pool: jax.Array, table: jax.Array, before: jax.Array, new: jax.Array) -> jax.Array:
    """Whole pages, from the first that no earlier token is in."""
    page = pool.shape[1]
    places = before[:, None] // page + jnp.arange(new.shape[1] // page)
    numbers = jnp.take_along_axis(table, places, axis=1)
    return pool.at[numbers].set(new.reshape(*numbers.shape, *pool.shape[1:]))


def _write_token(pool: jax.Array, table: jax.Array, before: jax.Array, new: jax.Array) -> jax.Array:
    """A line of the page that the token is in."""
    page = pool.shape[1]
    numbers = jnp.take_along_axis(table, before[:, None] // page, axis=1)[:, 0]
    return pool.at[numbers, before % page].set(new[:, 0])


def _rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions on [sequences, tokens, heads, size]."""
    half = x.shape[-1] // 2
    angle = positions[..., None].astype(jnp.float32) / 10000 ** (jnp.arange(half) / half)
    cos, sin = (wave(angle)[:, :, None].astype(x.dtype) for wave in (jnp.cos, jnp.sin))
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
