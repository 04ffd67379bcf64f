"""A training step of a llama as wide as that with 7 billion parameters: rotary positions, grouped queries, SwiGLU; remat in each
layer."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import jax
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.scaled import SIZES, Sizes, normalise, rotated

SIZE = SIZES["llama"]
SMALL = Sizes(width=2048, hidden=5504, vocabulary=32000, heads=16, key_heads=8)
"""Half as wide."""

TOKENS = 2 * LENGTH
"""Tokens of each device."""


class LayerSizes(Protocol):
    """Sizes of a layer; keys and values have `key_heads`."""

    @property
    def width(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def key_heads(self) -> int: ...


def llama(
    style: str,
    devices: int,
    *,
    layers: int,
    scan: bool,
    annotated: bool,
    size: Sizes = SIZE,
    tokens: int = TOKENS,
    length: int = LENGTH,
) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`, on so many `tokens` of each device, in
    sequences of that `length`."""
    chosen = common.STYLES[style]
    weights = _parameters(chosen, layers, size, scan=scan)
    batch = Argument((devices * tokens // length, length), P("data", None), below=size.vocabulary)
    return common.training_step(
        f"llama{layers}_{'scan_' if scan else ''}{style}",
        common.grid(devices, chosen.model),
        partial(loss, size=size, pins=chosen.pins if annotated else {}),
        weights,
        batch,
        batch,
    )


def _parameters(style: Style, layers: int, size: Sizes, *, scan: bool) -> Tree:
    return {
        "embedding": weight(size.vocabulary, size.width, spec=style.out_of),
        "layers": common.stacked(layer_parameters(style, size), layers, scan=scan),
        "final_scale": scale(size.width),
        "output": weight(size.width, size.vocabulary, spec=style.into),
    }


def layer_parameters(style: Style, size: LayerSizes) -> Tree:
    """Those of one layer."""
    into, out_of, width = style.into, style.out_of, size.width
    inner = width // size.heads * size.key_heads
    return {
        "attention_scale": scale(width),
        "query": weight(width, width, spec=into),
        "key": weight(width, inner, spec=into),
        "value": weight(width, inner, spec=into),
        "attention_out": weight(width, width, spec=out_of),
        "mlp_scale": scale(width),
        "gate": weight(width, size.hidden, spec=into),
        "up": weight(width, size.hidden, spec=into),
        "down": weight(size.hidden, width, spec=out_of),
    }


def loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Sizes, pins: Pins) -> jax.Array:
    """The cross-entropy of a batch, a scalar."""
    return common.cross_entropy(logits(parameters, tokens, size=size, pins=pins), targets)


def logits(parameters: Tree, tokens: jax.Array, *, size: Sizes, pins: Pins) -> jax.Array:
    """Those of the next tokens, [batch, length, vocabulary]."""
    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(partial(block, size=size, pins=pins), x, parameters["layers"])
    return pinned(normalise(x, parameters["final_scale"]) @ parameters["output"], "logits", pins)


def block(x: jax.Array, layer: Tree, *, size: Sizes, pins: Pins) -> jax.Array:
    """`x` after one layer."""
    x = pinned(x + _attention(layer, normalise(x, layer["attention_scale"]), size, pins), "residual", pins)
    return pinned(x + common.gated(layer, normalise(x, layer["mlp_scale"]), jax.nn.silu, pins), "residual", pins)


def _attention(layer: Tree, x: jax.Array, size: Sizes, pins: Pins) -> jax.Array:
    batch, length, _ = x.shape
    query, key, value = (
        pinned(common.product(x, layer[name]).reshape(batch, length, heads, -1), "heads", pins)
        for name, heads in (("query", size.heads), ("key", size.key_heads), ("value", size.key_heads))
    )
    mixed = pinned(common.causal_attention(rotated(query), rotated(key), value), "heads", pins)
    return mixed.reshape(batch, length, -1) @ layer["attention_out"]
