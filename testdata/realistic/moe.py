"""A training step of a language model whose MLPs are mixtures of experts: GShard's top-2 gating with a capacity, one axis for
batch and experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.moe import combine_weights
from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, pinned, scale, weight
from testdata.scaled import normalise


@dataclass(frozen=True)
class Size:
    """`sequences` are those of a device, `group` is the number of tokens whose experts' slots are their own."""

    layers: int = 4
    width: int = 1024
    hidden: int = 4096
    heads: int = 8
    vocabulary: int = 32768
    sequences: int = 4
    group: int = 512
    length: int = LENGTH


SIZE = Size()

PINS = {
    "residual": P("x", None, None),
    "heads": P("x", None, None, None),
    "experts": P("x", None, None, None),
    "logits": P("x", None, None),
}
"""Batch along the axis, and the experts' inputs and outputs too."""


def mixture(devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent; as many experts as devices."""
    weights = _parameters(devices, size)
    batch = Argument((size.sequences * devices, size.length), P("x", None), below=size.vocabulary)
    return common.training_step(
        "moe_lm", (("x", devices),), partial(_loss, size=size, pins=PINS if annotated else {}), weights, batch, batch
    )


def _parameters(experts: int, size: Size) -> Tree:
    by_expert, width = P("x", None, None), size.width
    layer = {
        "attention_scale": scale(width),
        "query_key_value": weight(width, 3, size.heads, width // size.heads, spec=P()),
        "attention_out": weight(width, width, spec=P()),
        "mlp_scale": scale(width),
        "router": weight(width, experts, spec=P()),
        "into": weight(experts, width, size.hidden, spec=by_expert),
        "out_of": weight(experts, size.hidden, width, spec=by_expert),
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=P()),
        "layers": [layer] * size.layers,
        "final_scale": scale(width),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> jax.Array:
        x = pinned(x + _attention(layer, normalise(x, layer["attention_scale"]), pins), "residual", pins)
        return pinned(x + _experts(layer, normalise(x, layer["mlp_scale"]), size, pins), "residual", pins)

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _attention(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    together = jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"])
    query, key, value = (pinned(each, "heads", pins) for each in jnp.moveaxis(together, 2, 0))
    return common.causal_attention(query, key, value).reshape(x.shape) @ layer["attention_out"]


def _experts(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """Tokens in groups, [group, token, width], to their experts, [expert, group, slot, width], and back."""
    tokens = x.reshape(-1, size.group, size.width)
    gates = jax.nn.softmax((tokens @ layer["router"]).astype(jnp.float32))
    experts = gates.shape[-1]
    combine = combine_weights(gates, capacity=max(4, 5 * size.group // (2 * experts))).astype(
        x.dtype
    )  # two experts each, a quarter over
    given = pinned(jnp.einsum("gsec,gsd->egcd", (combine > 0).astype(x.dtype), tokens), "experts", pins)
    hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", given, layer["into"]))
    found = pinned(jnp.einsum("egcf,efd->egcd", hidden, layer["out_of"]), "experts", pins)
    return jnp.einsum("gsec,egcd->gsd", combine, found).reshape(x.shape)
