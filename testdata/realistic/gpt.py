"""A training step of a GPT: layer norm, fused query, key and value, GELU, learned positions, tied embedding, remat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight


@dataclass(frozen=True)
class Size:
    """`sequences` are those of each row of the mesh."""

    width: int = 2048
    heads: int = 16
    vocabulary: int = 32768
    sequences: int = 4
    length: int = LENGTH


SIZE = Size()


def gpt(style: str, devices: int, *, layers: int, scan: bool, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = parameters(chosen, layers, scan=scan, size=size)
    batch = common.batch_of(axes, size)
    return common.training_step(
        f"gpt{layers}_{'scan_' if scan else ''}{style}",
        axes,
        partial(loss, pins=chosen.pins if annotated else {}),
        weights,
        batch,
        batch,
    )


def parameters(style: Style, layers: int, *, scan: bool, size: Size = SIZE) -> Tree:
    """All parameters, the layers' stacked if they stand under a scan."""
    into, out_of, width = style.into, style.out_of, size.width
    layer = {
        "attention_scale": scale(width),
        "query_key_value": weight(width, 3, size.heads, width // size.heads, spec=P(into[0], None, "model", None)),
        "attention_out": weight(width, width, spec=out_of),
        "mlp_scale": scale(width),
        "mlp_in": weight(width, 4 * width, spec=into),
        "mlp_out": weight(4 * width, width, spec=out_of),
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "positions": weight(size.length, width, spec=P(None, out_of[1])),
        "layers": common.stacked(layer, layers, scan=scan),
        "final_scale": scale(width),
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
