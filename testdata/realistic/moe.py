"""A training step of a language model whose MLPs are mixtures of experts: GShard's top-2 gating with a capacity, one axis for
batch and experts."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.moe import combine_weights
from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, pinned, scale, weight
from testdata.scaled import normalise

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY, SEQUENCES, GROUP = 4, 1024, 4096, 8, 32768, 4, 512
"""The last two: sequences of a device, and tokens of a group, whose experts' slots are its own."""

PINS = {
    "residual": P("x", None, None),
    "heads": P("x", None, None, None),
    "experts": P("x", None, None, None),
    "logits": P("x", None, None),
}
"""Batch along the axis, and the experts' inputs and outputs too."""


def mixture(devices: int, *, annotated: bool) -> Program:
    """value_and_grad and gradient descent; as many experts as devices."""
    weights = _parameters(devices)
    batch = Argument((SEQUENCES * devices, LENGTH), P("x", None), below=VOCABULARY)
    return Program(
        name="moe_lm",
        axes=(("x", devices),),
        function=partial(common.descended, partial(_loss, pins=PINS if annotated else {})),
        arguments=(weights, batch, batch),
        out_specs=(P(), common.specs(weights)),
        donated=(0,),
    )


def _parameters(experts: int) -> Tree:
    by_expert = P("x", None, None)
    layer = {
        "attention_scale": scale(WIDTH),
        "query_key_value": weight(WIDTH, 3, HEADS, WIDTH // HEADS, spec=P()),
        "attention_out": weight(WIDTH, WIDTH, spec=P()),
        "mlp_scale": scale(WIDTH),
        "router": weight(WIDTH, experts, spec=P()),
        "into": weight(experts, WIDTH, HIDDEN, spec=by_expert),
        "out_of": weight(experts, HIDDEN, WIDTH, spec=by_expert),
    }
    return {
        "embedding": weight(VOCABULARY, WIDTH, spec=P()),
        "layers": [layer] * LAYERS,
        "final_scale": scale(WIDTH),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, pins: Pins) -> jax.Array:
    def block(x: jax.Array, layer: Tree) -> jax.Array:
        x = pinned(x + _attention(layer, normalise(x, layer["attention_scale"]), pins), "residual", pins)
        return pinned(x + _experts(layer, normalise(x, layer["mlp_scale"]), pins), "residual", pins)

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _attention(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    together = jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"])
    query, key, value = (pinned(each, "heads", pins) for each in jnp.moveaxis(together, 2, 0))
    return common.causal_attention(query, key, value).reshape(x.shape) @ layer["attention_out"]


def _experts(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    """Tokens in groups, [group, token, width], to their experts, [expert, group, slot, width], and back."""
    tokens = x.reshape(-1, GROUP, WIDTH)
    gates = jax.nn.softmax((tokens @ layer["router"]).astype(jnp.float32))
    experts = gates.shape[-1]
    combine = combine_weights(gates, capacity=max(4, 5 * GROUP // (2 * experts))).astype(
        x.dtype
    )  # two experts each, a quarter over
    given = pinned(jnp.einsum("gsec,gsd->egcd", (combine > 0).astype(x.dtype), tokens), "experts", pins)
    hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", given, layer["into"]))
    found = pinned(jnp.einsum("egcf,efd->egcd", hidden, layer["out_of"]), "experts", pins)
    return jnp.einsum("gsec,egcd->gsd", combine, found).reshape(x.shape)
