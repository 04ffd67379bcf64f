"""A training step of a language model with dropless experts: tokens sorted by their expert, and products of as many rows as each
expert has tokens (`jax.lax.ragged_dot`); parameters fully sharded, the experts' hidden layers split too; remat in each layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.scaled import normalise, rotated


@dataclass(frozen=True)
class Size:
    """32 experts, of which each token goes to `chosen`; `sequences` are those of each row of the mesh."""

    width: int = 2048
    hidden: int = 1408
    heads: int = 16
    experts: int = 32
    chosen: int = 4
    layers: int = 4
    vocabulary: int = 32768
    sequences: int = 4
    length: int = LENGTH


SIZE = Size()


def dropless(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`; the tokens of all sequences are sorted
    together."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    batch = common.batch_of(axes, size)
    pins = {**chosen.pins, "sorted": P("data", None), "sorted_hidden": P("data", "model")} if annotated else {}
    return common.training_step(f"dropless_{style}", axes, partial(_loss, size=size, pins=pins), weights, batch, batch)


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width = style.into, style.out_of, size.width
    layer = {
        "attention_scale": scale(width),
        "query_key_value": weight(width, 3, size.heads, width // size.heads, spec=P(into[0], None, "model", None)),
        "attention_out": weight(width, width, spec=out_of),
        "mlp_scale": scale(width),
        "router": weight(width, size.experts, spec=P(into[0], None)),
        "gate": weight(size.experts, width, size.hidden, spec=P(None, *into)),
        "up": weight(size.experts, width, size.hidden, spec=P(None, *into)),
        "down": weight(size.experts, size.hidden, width, spec=P(None, *out_of)),
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "layers": common.stacked(layer, size.layers, scan=True),
        "final_scale": scale(width),
        "output": weight(width, size.vocabulary, spec=into),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> jax.Array:
        x = pinned(x + _attention(layer, normalise(x, layer["attention_scale"]), pins), "residual", pins)
        return pinned(x + _experts(layer, normalise(x, layer["mlp_scale"]), size, pins), "residual", pins)

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["output"]
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _attention(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    together = jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"])
    query, key, value = (pinned(each, "heads", pins) for each in jnp.moveaxis(together, 2, 0))
    mixed = pinned(common.causal_attention(rotated(query), rotated(key), value), "heads", pins)
    return mixed.reshape(x.shape) @ layer["attention_out"]


def _experts(layer: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """Each token `chosen` times, in the order of the experts it goes to, and back."""
    tokens = x.reshape(-1, size.width)
    gates = jax.nn.softmax((tokens @ layer["router"]).astype(jnp.float32))
    strongest, experts = jax.lax.top_k(gates, size.chosen)
    shares = (strongest / jnp.sum(strongest, axis=-1, keepdims=True)).astype(x.dtype)
    order = jnp.argsort(experts.reshape(-1))
    counts = jnp.bincount(experts.reshape(-1), length=size.experts)
    given = pinned(tokens[order // size.chosen], "sorted", pins)
    gate, up = (jax.lax.ragged_dot(given, layer[name], counts) for name in ("gate", "up"))
    hidden = pinned(jax.nn.silu(gate) * up, "sorted_hidden", pins)
    found = pinned(jax.lax.ragged_dot(hidden, layer["down"], counts), "sorted", pins)
    back = found[jnp.argsort(order)].reshape(-1, size.chosen, size.width)
    return jnp.einsum("tkd,tk->td", back, shares).reshape(x.shape)
