"""A training step of a latent-diffusion U-Net: residual blocks with group norm and a time embedding, self-attention, skips; batch
and parameters split over the same devices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned, scale, weight

IMAGES, SIDE, LATENT, CHANNELS, GROUPS, HEADS, TIME = 4, 64, 4, (320, 640, 1280), 32, 8, 1280
"""The first is the number of images of a device."""
PINS = {"activation": P("data", None, None, None), "tokens": P("data", None, None, None)}


def unet(devices: int, *, annotated: bool) -> Program:
    """value_and_grad of the noise's squared error, and gradient descent; parameters fully sharded."""
    weights = _parameters()
    image = Argument((IMAGES * devices, SIDE, SIDE, LATENT), P("data", None, None, None), element="bfloat16")
    times = Argument((IMAGES * devices,), P("data"), element="bfloat16")
    return common.training_step(
        "unet", (("data", devices),), partial(_loss, pins=PINS if annotated else {}), weights, image, times, image
    )


def _kernel(side: int, inputs: int, outputs: int) -> Argument:
    return weight(side, side, inputs, outputs, spec=P(None, None, None, "data"))


def _level(inputs: int, outputs: int) -> Tree:
    """A residual block and an attention layer."""
    square = P(None, "data")
    return {
        "first_scale": scale(inputs),
        "first": _kernel(3, inputs, outputs),
        "time": weight(TIME, outputs, spec=square),
        "second_scale": scale(outputs),
        "second": _kernel(3, outputs, outputs),
        "shortcut": _kernel(1, inputs, outputs),
        "attention_scale": scale(outputs),
        "query_key_value": weight(outputs, 3 * outputs, spec=square),
        "attention_out": weight(outputs, outputs, spec=P("data", None)),
    }


def _parameters() -> Tree:
    first, *_, last = CHANNELS
    into = list(zip((first, *CHANNELS), CHANNELS, strict=False))
    return {
        "time_in": weight(first, TIME, spec=P(None, "data")),
        "time_out": weight(TIME, TIME, spec=P("data", None)),
        "in": weight(3, 3, LATENT, first, spec=P()),
        "down": [_level(*channels) | {"stride": _kernel(3, channels[1], channels[1])} for channels in into],
        "middle": _level(last, last),
        "up": [_level(2 * outputs, inputs) for inputs, outputs in reversed(into)],
        "out_scale": scale(first),
        "out": weight(3, 3, first, LATENT, spec=P()),
    }


def _loss(parameters: Tree, image: jax.Array, times: jax.Array, noise: jax.Array, *, pins: Pins) -> jax.Array:
    time = jax.nn.silu(_waves(times) @ parameters["time_in"]) @ parameters["time_out"]
    level = jax.checkpoint(partial(_through_level, pins=pins))
    x, skips = pinned(_convolve(image, parameters["in"]), "activation", pins), []
    for layer in parameters["down"]:
        x = level(layer, x, time)
        skips.append(x)
        x = _convolve(x, layer["stride"], 2)
    x = level(parameters["middle"], x, time)
    for layer in parameters["up"]:
        x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        x = level(layer, jnp.concatenate([x, skips.pop()], axis=-1), time)
    found = _convolve(jax.nn.silu(_normalised(x, parameters["out_scale"])), parameters["out"])
    return jnp.mean((found - noise).astype(jnp.float32) ** 2)


def _waves(times: jax.Array) -> jax.Array:
    """[images] to [images, channels]: sines and cosines of many frequencies."""
    half = CHANNELS[0] // 2
    angles = times[:, None].astype(jnp.float32) * jnp.exp(-jnp.log(1e4) * jnp.arange(half, dtype=jnp.float32) / half)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(times.dtype)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Group norm, in float32."""
    grouped = x.astype(jnp.float32).reshape(*x.shape[:3], GROUPS, -1)
    mean, variance = (statistic(grouped, axis=(1, 2, 4), keepdims=True) for statistic in (jnp.mean, jnp.var))
    return ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape).astype(x.dtype) * scale


def _through_level(layer: Tree, x: jax.Array, time: jax.Array, *, pins: Pins) -> jax.Array:
    inner = _convolve(jax.nn.silu(_normalised(x, layer["first_scale"])), layer["first"])
    inner = inner + (jax.nn.silu(time) @ layer["time"])[:, None, None]
    inner = _convolve(jax.nn.silu(_normalised(inner, layer["second_scale"])), layer["second"])
    x = pinned(inner + _convolve(x, layer["shortcut"]), "activation", pins)
    return pinned(x + _attention(layer, _normalised(x, layer["attention_scale"]), pins), "activation", pins)


def _attention(layer: Tree, x: jax.Array, pins: Pins) -> jax.Array:
    images, rows, columns, channels = x.shape
    together = (x.reshape(images, rows * columns, channels) @ layer["query_key_value"]).reshape(
        images, -1, 3, HEADS, channels // HEADS
    )
    query, key, value = (pinned(each, "tokens", pins) for each in jnp.moveaxis(together, 2, 0))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) * (channels // HEADS) ** -0.5
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
    return mixed.reshape(x.shape) @ layer["attention_out"]
