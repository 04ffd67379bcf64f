"""A training step of ResNet-50: images of 224 x 224 split by batch, batch statistics over all of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins, pinned, scale, weight

IMAGES, SIDE, CLASSES, STEM = 32, 224, 1000, 64
"""The first is the number of images of a device."""
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, channels of the inner convolutions (a quarter of the outer ones'), and the stride of the first block."""
PINS = {"activation": P("data", None, None, None), "logits": P("data", None)}


def resnet50(devices: int, *, annotated: bool) -> Program:
    """value_and_grad and gradient descent, data parallel."""
    weights = _parameters()
    images = Argument((IMAGES * devices, SIDE, SIDE, 3), P("data", None, None, None), element="bfloat16")
    labels = Argument((IMAGES * devices,), P("data"), below=CLASSES)
    return Program(
        name="resnet50",
        axes=(("data", devices),),
        function=partial(common.descended, partial(_loss, pins=PINS if annotated else {})),
        arguments=(weights, images, labels),
        out_specs=(P(), P()),
        donated=(0,),
    )


def _convolution(side: int, inputs: int, outputs: int) -> Tree:
    return {
        "kernel": weight(side, side, inputs, outputs, spec=P()),
        "scale": scale(outputs),
        "shift": weight(outputs, spec=P()),
    }


def _parameters() -> Tree:
    blocks, inputs = [], STEM
    for count, inner, _ in STAGES:
        for index in range(count):
            block = {
                "reduce": _convolution(1, inputs, inner),
                "middle": _convolution(3, inner, inner),
                "expand": _convolution(1, inner, 4 * inner),
            }
            blocks.append(block if index else block | {"shortcut": _convolution(1, inputs, 4 * inner)})
            inputs = 4 * inner
    return {"stem": _convolution(7, 3, STEM), "blocks": blocks, "head": weight(inputs, CLASSES, spec=P())}


def _loss(parameters: Tree, images: jax.Array, labels: jax.Array, *, pins: Pins) -> jax.Array:
    x = jax.nn.relu(_normalised_convolution(images, parameters["stem"], 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    strides = [stride if index == 0 else 1 for count, _, stride in STAGES for index in range(count)]
    for block, stride in zip(parameters["blocks"], strides, strict=True):
        x = pinned(x, "activation", pins)
        inner = jax.nn.relu(_normalised_convolution(x, block["reduce"]))
        inner = jax.nn.relu(_normalised_convolution(inner, block["middle"], stride))
        inner = _normalised_convolution(inner, block["expand"])
        x = jax.nn.relu(inner + (_normalised_convolution(x, block["shortcut"], stride) if "shortcut" in block else x))
    logits = jnp.mean(x, axis=(1, 2)) @ parameters["head"]
    return common.cross_entropy(pinned(logits, "logits", pins), labels)


def _normalised_convolution(x: jax.Array, layer: Tree, stride: int = 1) -> jax.Array:
    """A convolution and batch norm, whose statistics are in float32."""
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=numbers)
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=(0, 1, 2))
    variance = jnp.mean(wide * wide, axis=(0, 1, 2)) - mean * mean
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype) * layer["scale"] + layer["shift"]
