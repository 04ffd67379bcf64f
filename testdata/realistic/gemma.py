"""A training step of a decoder like Gemma 2: local and global attention in turn, soft caps on the scores and on the logits, norms
before and after each sublayer, a tied table of 256,000 tokens; remat in each pair of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, weight
from testdata.scaled import normalise, rotated


@dataclass(frozen=True)
class Size:
    """The sizes of Gemma 2 with 2 billion parameters, but for the layers and the window, half a sequence as there.

    `sequences` are those of each row of the mesh."""

    width: int = 2304
    hidden: int = 9216
    heads: int = 8
    key_heads: int = 4
    head: int = 256
    vocabulary: int = 256000
    pairs: int = 4
    window: int = LENGTH // 2
    scores_cap: float = 50.0
    logits_cap: float = 30.0
    sequences: int = 4
    length: int = LENGTH


SIZE = Size()


def gemma(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`; pairs of layers under `lax.scan`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    batch = common.batch_of(axes, size)
    return common.training_step(
        f"gemma{2 * size.pairs}_scan_{style}",
        axes,
        partial(_loss, size=size, pins=chosen.pins if annotated else {}),
        weights,
        batch,
        batch,
    )


def _scale(width: int) -> Argument:
    """That of a norm, less one."""
    return Argument((width,), P(), 0.02, element="bfloat16")


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width = style.into, style.out_of, size.width
    layer = {
        "query": weight(width, size.heads * size.head, spec=into),
        "key": weight(width, size.key_heads * size.head, spec=into),
        "value": weight(width, size.key_heads * size.head, spec=into),
        "attention_out": weight(size.heads * size.head, width, spec=out_of),
        "gate": weight(width, size.hidden, spec=into),
        "up": weight(width, size.hidden, spec=into),
        "down": weight(size.hidden, width, spec=out_of),
        **{f"{when}_{part}": _scale(width) for when in ("before", "after") for part in ("attention", "mlp")},
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "pairs": common.stacked({"local": layer, "global": layer}, size.pairs, scan=True),
        "final_scale": _scale(width),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def pair(x: jax.Array, layers: Tree) -> jax.Array:
        x = _layer(layers["local"], x, size.window, size, pins)
        return _layer(layers["global"], x, size.length, size, pins)

    x = parameters["embedding"][tokens] * jnp.asarray(size.width**0.5, parameters["embedding"].dtype)
    x = common.through(pair, pinned(x, "residual", pins), parameters["pairs"])
    logits = normalise(x, 1 + parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(_capped(pinned(logits, "logits", pins).astype(jnp.float32), size.logits_cap), targets)


def _layer(layer: Tree, x: jax.Array, window: int, size: Size, pins: Pins) -> jax.Array:
    mixed = _attention(layer, normalise(x, 1 + layer["before_attention"]), window, size, pins)
    x = pinned(x + normalise(mixed, 1 + layer["after_attention"]), "residual", pins)
    found = common.gated(layer, normalise(x, 1 + layer["before_mlp"]), jax.nn.gelu, pins)
    return pinned(x + normalise(found, 1 + layer["after_mlp"]), "residual", pins)


def _attention(layer: Tree, x: jax.Array, window: int, size: Size, pins: Pins) -> jax.Array:
    """Of each token to the `window` last ones, itself among them."""
    query, key, value = (
        pinned((x @ layer[name]).reshape(*x.shape[:2], -1, size.head), "heads", pins) for name in ("query", "key", "value")
    )

    def adjusted(scores: jax.Array) -> jax.Array:
        before = jnp.arange(size.length)[:, None] - jnp.arange(size.length)[None, :]
        return jnp.where((before >= 0) & (before < window), _capped(scores, size.scores_cap), -1e9)

    mixed = common.attention(rotated(query), rotated(key), value, adjusted, size.head**-0.5)
    return pinned(mixed, "heads", pins).reshape(*x.shape[:2], -1) @ layer["attention_out"]


def _capped(x: jax.Array, cap: float) -> jax.Array:
    return cap * jnp.tanh(x / cap)
