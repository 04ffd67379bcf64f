"""A training step of a T5 1.1: an encoder and a decoder that attends to it, relative position biases, gated GELU; remat in each
layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.scaled import normalise


@dataclass(frozen=True)
class Size:
    """The sizes of T5 1.1 XL, but for the layers.

    `layers` are those of either stack, `buckets` those of distances, of which all beyond `farthest` are one; `sequences` are
    those of each row of the mesh, of `inputs` tokens read and `targets` tokens written.
    """

    width: int = 2048
    hidden: int = 5120
    heads: int = 32
    head: int = 64
    vocabulary: int = 32128
    layers: int = 6
    buckets: int = 32
    farthest: int = 128
    sequences: int = 4
    inputs: int = LENGTH
    targets: int = 512


SIZE = Size()


def t5(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`; both stacks under `lax.scan`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    pins = {**chosen.pins, "bias": P("model", None, None)} if annotated else {}
    rows = size.sequences * dict(axes)["data"]
    inputs, targets = (Argument((rows, n), P("data", None), below=size.vocabulary) for n in (size.inputs, size.targets))
    return common.training_step(f"t5_scan_{style}", axes, partial(_loss, size=size, pins=pins), weights, inputs, targets)


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width = style.into, style.out_of, size.width
    inner = size.heads * size.head

    def attention(name: str) -> Tree:
        matrices = {f"{name}_{each}": weight(width, inner, spec=into) for each in ("query", "key", "value")}
        return {f"{name}_scale": scale(width), **matrices, f"{name}_out": weight(inner, width, spec=out_of)}

    mlp = {
        "mlp_scale": scale(width),
        "gate": weight(width, size.hidden, spec=into),
        "up": weight(width, size.hidden, spec=into),
        "down": weight(size.hidden, width, spec=out_of),
    }
    bias = weight(size.buckets, size.heads, spec=P(None, "model"))
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "encoder": common.stacked({**attention("self"), **mlp}, size.layers, scan=True),
        "encoder_bias": bias,
        "encoder_scale": scale(width),
        "decoder": common.stacked({**attention("self"), **attention("cross"), **mlp}, size.layers, scan=True),
        "decoder_bias": bias,
        "decoder_scale": scale(width),
        "output": weight(width, size.vocabulary, spec=into),
    }


def _loss(parameters: Tree, inputs: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    encoded = _encoded(parameters, inputs, size, pins)
    bias = _bias(parameters["decoder_bias"], size.targets, size, pins, causal=True)
    mask = jnp.where(jnp.tril(jnp.ones((size.targets, size.targets), bool)), 0, -1e9)

    def block(x: jax.Array, layer: Tree) -> jax.Array:
        normal = normalise(x, layer["self_scale"])
        x = pinned(x + _attention(layer, "self", normal, normal, bias + mask, size, pins), "residual", pins)
        normal = normalise(x, layer["cross_scale"])
        x = pinned(x + _attention(layer, "cross", normal, encoded, 0, size, pins), "residual", pins)
        return pinned(x + common.gated(layer, normalise(x, layer["mlp_scale"]), jax.nn.gelu, pins), "residual", pins)

    before = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    x = pinned(parameters["embedding"][before], "residual", pins)
    x = normalise(common.through(block, x, parameters["decoder"]), parameters["decoder_scale"])
    return common.cross_entropy(pinned(x @ parameters["output"], "logits", pins), targets)


def _encoded(parameters: Tree, inputs: jax.Array, size: Size, pins: Pins) -> jax.Array:
    bias = _bias(parameters["encoder_bias"], size.inputs, size, pins, causal=False)

    def block(x: jax.Array, layer: Tree) -> jax.Array:
        normal = normalise(x, layer["self_scale"])
        x = pinned(x + _attention(layer, "self", normal, normal, bias, size, pins), "residual", pins)
        return pinned(x + common.gated(layer, normalise(x, layer["mlp_scale"]), jax.nn.gelu, pins), "residual", pins)

    x = pinned(parameters["embedding"][inputs], "residual", pins)
    return normalise(common.through(block, x, parameters["encoder"]), parameters["encoder_scale"])


def _attention(
    layer: Tree, name: str, x: jax.Array, source: jax.Array, bias: jax.Array | float, size: Size, pins: Pins
) -> jax.Array:
    """Of the queries of `x` to the keys of `source`; T5 does not scale its scores."""
    query, key, value = (
        pinned((of @ layer[f"{name}_{each}"]).reshape(*of.shape[:2], size.heads, size.head), "heads", pins)
        for each, of in (("query", x), ("key", source), ("value", source))
    )
    mixed = pinned(common.attention(query, key, value, lambda scores: scores + bias), "heads", pins)
    return mixed.reshape(*x.shape[:2], -1) @ layer[f"{name}_out"]


def _bias(table: jax.Array, length: int, size: Size, pins: Pins, *, causal: bool) -> jax.Array:
    """[heads, length, length] in float32: what the table has for the bucket of each distance."""
    away = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    buckets = size.buckets if causal else size.buckets // 2
    first = 0 if causal else jnp.where(away > 0, buckets, 0)
    distance = -jnp.minimum(away, 0) if causal else jnp.abs(away)
    exact = buckets // 2
    share = jnp.log(jnp.maximum(distance, 1) / exact) / jnp.log(size.farthest / exact)
    coarse = jnp.minimum(exact + (share * (buckets - exact)).astype(jnp.int32), buckets - 1)
    bucket = first + jnp.where(distance < exact, distance, coarse)
    return pinned(jnp.moveaxis(table[bucket].astype(jnp.float32), -1, 0), "bias", pins)
