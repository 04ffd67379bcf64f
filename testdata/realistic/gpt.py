"""A training step of a GPT: layer norm, fused query, key and value, GELU, learned positions, tied embedding, remat."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight

WIDTH, HEADS, VOCABULARY, SEQUENCES = 2048, 16, 32768, 4
"""The last is the number of sequences of each row of the mesh."""


def gpt(style: str, devices: int, *, layers: int, scan: bool, annotated: bool) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = parameters(chosen, layers, scan=scan)
    batch = tokens(axes)
    return Program(
        name=f"gpt{layers}_{'scan_' if scan else ''}{style}",
        axes=axes,
        function=partial(common.descended, partial(loss, pins=chosen.pins if annotated else {})),
        arguments=(weights, batch, batch),
        out_specs=(P(), common.specs(weights)),
        donated=(0,),
    )


def tokens(axes: common.Axes) -> Argument:
    """A batch, sharded along "data"."""
    return Argument((SEQUENCES * dict(axes)["data"], LENGTH), P("data", None), below=VOCABULARY)


def parameters(style: Style, layers: int, *, scan: bool) -> Tree:
    """All parameters, the layers' stacked if they stand under a scan."""
    into, out_of = style.into, style.out_of
    layer = {
        "attention_scale": scale(WIDTH),
        "query_key_value": weight(WIDTH, 3, HEADS, WIDTH // HEADS, spec=P(into[0], None, "model", None)),
        "attention_out": weight(WIDTH, WIDTH, spec=out_of),
        "mlp_scale": scale(WIDTH),
        "mlp_in": weight(WIDTH, 4 * WIDTH, spec=into),
        "mlp_out": weight(4 * WIDTH, WIDTH, spec=out_of),
    }
    return {
        "embedding": weight(VOCABULARY, WIDTH, spec=out_of),
        "positions": weight(LENGTH, WIDTH, spec=P(None, out_of[1])),
        "layers": common.stacked(layer, layers, scan=scan),
        "final_scale": scale(WIDTH),
    }


def loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, pins: Pins) -> jax.Array:
    """The cross-entropy of the targets."""

    def block(x: jax.Array, layer: Tree) -> jax.Array:
        x = pinned(x + _attention(layer, _normalise(x, layer["attention_scale"]), pins), "residual", pins)
        hidden = pinned(jax.nn.gelu(_normalise(x, layer["mlp_scale"]) @ layer["mlp_in"]), "hidden", pins)
        return pinned(x + hidden @ layer["mlp_out"], "residual", pins)

    x = pinned(parameters["embedding"][tokens] + parameters["positions"], "residual", pins)
    x = common.through(block, x, parameters["layers"])
    logits = _normalise(x, parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Layer norm, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(jnp.var(wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _attention(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    together = jnp.einsum("btd,dchk->btchk", x, layer["query_key_value"])
    query, key, value = (pinned(each, "heads", pins) for each in jnp.moveaxis(together, 2, 0))
    mixed = pinned(common.causal_attention(query, key, value), "heads", pins)
    return mixed.reshape(*x.shape[:2], -1) @ layer["attention_out"]
