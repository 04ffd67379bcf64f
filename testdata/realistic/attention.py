"""A layer of causal attention, forward and backward, with a long sequence split over devices (context parallelism).

As practitioners annotate it, queries stay where their tokens are, and keys and values, of which there are four times fewer, are
gathered.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned, weight

WIDTH, HEADS, KEY_HEADS, LENGTH, SHARDS = 4096, 32, 8, 8192, 8
SEQUENCE = P("data", "model", None)
PINS = {
    "residual": SEQUENCE,
    "query": P("data", "model", None, None),
    "shared": P("data", None, None, None),
}


def context_parallel(devices: int, *, annotated: bool) -> Program:
    """value_and_grad by the parameters and gradient descent; the sequence in 8 shards, a sequence for each 8 devices."""
    axes = common.grid(devices, SHARDS)
    size = WIDTH // HEADS
    weights = {
        "query": weight(WIDTH, HEADS, size, spec=P()),
        "key": weight(WIDTH, KEY_HEADS, size, spec=P()),
        "value": weight(WIDTH, KEY_HEADS, size, spec=P()),
        "out": weight(WIDTH, WIDTH, spec=P()),
    }
    x = Argument((dict(axes)["data"], LENGTH, WIDTH), SEQUENCE, element="bfloat16")
    return Program(
        name="cp_attention",
        axes=axes,
        function=partial(common.descended, partial(_loss, pins=PINS if annotated else {})),
        arguments=(weights, x, x),
        out_specs=(P(), P()),
        donated=(0,),
    )


def _loss(parameters: Tree, x: jax.Array, wanted: jax.Array, *, pins: Pins) -> jax.Array:
    def layer(x: jax.Array) -> jax.Array:
        query, key, value = (jnp.einsum("btd,dhk->bthk", x, parameters[name]) for name in ("query", "key", "value"))
        key, value = pinned(key, "shared", pins), pinned(value, "shared", pins)
        mixed = common.causal_attention(pinned(query, "query", pins), key, value)
        return x + pinned(mixed, "query", pins).reshape(x.shape) @ parameters["out"]

    found = pinned(jax.checkpoint(layer)(x), "residual", pins)
    return jnp.mean((found - wanted).astype(jnp.float32) ** 2)
