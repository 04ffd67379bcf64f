"""A training step of a decoder like DeepSeek-V2: attention whose keys and values are made of a short latent (MLA), experts that
all tokens share beside those that a router chooses; remat in each layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.moe import combine_weights
from testdata.program import Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.scaled import normalise, rotated


@dataclass(frozen=True)
class Size:
    """The sizes of DeepSeek-V2-Lite, but for the layers and the experts, of which a token goes to two with a capacity.

    `latent` is the width of what keys and values are made of; the first `plain` numbers of a query or key have no position, the
    `turned` after them are rotary, and the keys' are shared by all heads. `group` tokens share the experts' slots; `sequences`
    are those of each row of the mesh.
    """

    width: int = 2048
    heads: int = 16
    latent: int = 512
    plain: int = 128
    turned: int = 64
    value: int = 128
    experts: int = 16
    expert_hidden: int = 1408
    shared_hidden: int = 2816
    group: int = 512
    vocabulary: int = 102400
    layers: int = 4
    sequences: int = 4
    length: int = LENGTH


SIZE = Size()


def mla(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`; heads and experts along "model"."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    batch = common.batch_of(axes, size)
    pins = {**chosen.pins, "latent": P("data", None, None), "experts": P("model", "data", None, None)} if annotated else {}
    return common.training_step(f"mla_{style}", axes, partial(_loss, size=size, pins=pins), weights, batch, batch)


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width, heads = style.into, style.out_of, size.width, size.heads
    data = into[0]
    attention = {
        "attention_scale": scale(width),
        "query": weight(width, heads * (size.plain + size.turned), spec=into),
        "latent": weight(width, size.latent + size.turned, spec=P(data, None)),
        "latent_scale": scale(size.latent),
        "key": weight(size.latent, heads * size.plain, spec=into),
        "value": weight(size.latent, heads * size.value, spec=into),
        "attention_out": weight(heads * size.value, width, spec=out_of),
    }
    experts = {
        "mlp_scale": scale(width),
        "router": weight(width, size.experts, spec=P(data, None)),
        "expert_gate": weight(size.experts, width, size.expert_hidden, spec=P("model", data, None)),
        "expert_up": weight(size.experts, width, size.expert_hidden, spec=P("model", data, None)),
        "expert_down": weight(size.experts, size.expert_hidden, width, spec=P("model", None, data)),
        "gate": weight(width, size.shared_hidden, spec=into),
        "up": weight(width, size.shared_hidden, spec=into),
        "down": weight(size.shared_hidden, width, spec=out_of),
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "layers": common.stacked({**attention, **experts}, size.layers, scan=True),
        "final_scale": scale(width),
        "output": weight(width, size.vocabulary, spec=into),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> jax.Array:
        x = pinned(x + _attention(layer, normalise(x, layer["attention_scale"]), size, pins), "residual", pins)
        normal = normalise(x, layer["mlp_scale"])
        shared = common.gated(layer, normal, jax.nn.silu, pins)
        return pinned(x + shared + _routed(layer, normal, size, pins), "residual", pins)

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["output"]
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _attention(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    latent, turned = jnp.split(pinned(x @ layer["latent"], "latent", pins), [size.latent], axis=-1)
    latent = normalise(latent, layer["latent_scale"])
    query, plain, value = (
        pinned((of @ layer[name]).reshape(*x.shape[:2], size.heads, -1), "heads", pins)
        for name, of in (("query", x), ("key", latent), ("value", latent))
    )
    plain_query, turned_query = jnp.split(query, [size.plain], axis=-1)
    query = jnp.concatenate([plain_query, rotated(turned_query)], axis=-1)
    shared = jnp.broadcast_to(rotated(turned[:, :, None]), (*x.shape[:2], size.heads, size.turned))
    key = pinned(jnp.concatenate([plain, shared], axis=-1), "heads", pins)
    mixed = pinned(common.causal_attention(query, key, value), "heads", pins)
    return mixed.reshape(*x.shape[:2], -1) @ layer["attention_out"]


def _routed(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """Tokens in groups, [group, token, width], to their experts, [expert, group, slot, width], and back."""
    tokens = x.reshape(-1, size.group, size.width)
    gates = jax.nn.softmax((tokens @ layer["router"]).astype(jnp.float32))
    capacity = max(4, 5 * size.group // (2 * size.experts))  # two experts each, a quarter over
    combine = combine_weights(gates, capacity=capacity).astype(x.dtype)
    given = pinned(jnp.einsum("gsec,gsd->egcd", (combine > 0).astype(x.dtype), tokens), "experts", pins)
    gate, up = (jnp.einsum("egcd,edf->egcf", given, layer[name]) for name in ("expert_gate", "expert_up"))
    found = pinned(jnp.einsum("egcf,efd->egcd", jax.nn.silu(gate) * up, layer["expert_down"]), "experts", pins)
    return jnp.einsum("gsec,egcd->gsd", combine, found).reshape(x.shape)
