"""Loss and gradients of a small ResNet with batch statistics: images split by batch, or by batch and rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

BATCH, SIDE, COLOURS, CLASSES = 16, 32, 3, 10
BLOCKS = ((16, 16, 1), (16, 32, 2), (32, 32, 1))
"""Channels in, channels out, stride."""


def resnet(*, spatial: bool, count: int = BATCH, side: int = SIDE) -> Program:
    """`count` square images: batch over 8 devices; or batch over 2 and rows over 4, where windows reach over the edges of shards.

    Two large images leave no other way to use 8 devices well.
    """
    batch, rows = (2, 4) if spatial else (8, 1)
    parameters = _parameters()
    images = Argument((count, side, side, COLOURS), P("b", "h", None, None))
    labels = Argument((count,), P("b"), below=CLASSES)
    plan = _reductions(parameters) + (_halos(count // batch, side, rows) if spatial else ())
    name = f"resnet_{('spatial' if count == BATCH else 'rows') if spatial else 'batch'}"
    return Program(name, (("b", batch), ("h", rows)), _gradients, (parameters, images, labels), (P(), P()), plan)


def _parameters() -> Tree:
    return {
        "stem": _kernel(3, COLOURS, BLOCKS[0][0]),
        "blocks": [_block(*channels) for *channels, _ in BLOCKS],
        "head": Argument((BLOCKS[-1][1], CLASSES), P(), 0.2),
    }


def _kernel(side: int, inputs: int, outputs: int) -> Argument:
    return Argument((side, side, inputs, outputs), P(), (2 / (side * side * inputs)) ** 0.5)


def _block(inputs: int, outputs: int) -> dict[str, Argument]:
    scale = Argument((outputs,), P(), 0.1, centre=1.0)
    shift = Argument((outputs,), P(), 0.1)
    block = {"first": _kernel(3, inputs, outputs), "second": _kernel(3, outputs, outputs)}
    block |= {f"{which}_{name}": array for which in block for name, array in (("scale", scale), ("shift", shift))}
    return block if inputs == outputs else block | {"shortcut": _kernel(1, inputs, outputs)}


def _gradients(parameters: Tree, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Tree]:
    return jax.value_and_grad(_loss)(parameters, images, labels)


def _loss(parameters: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
    x = jax.lax.reduce_window(_convolve(images, parameters["stem"]), -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for block, (_, _, stride) in zip(parameters["blocks"], BLOCKS, strict=True):
        inner = jax.nn.relu(_batch_norm(_convolve(x, block["first"], stride), block["first_scale"], block["first_shift"]))
        inner = _batch_norm(_convolve(inner, block["second"]), block["second_scale"], block["second_shift"])
        x = jax.nn.relu(inner + (_convolve(x, block["shortcut"], stride) if "shortcut" in block else x))
    logits = jnp.mean(x, axis=(1, 2)) @ parameters["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _batch_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def _reductions(parameters: Tree) -> tuple[Term, ...]:
    size = sum(argument.bytes for argument in jax.tree.leaves(parameters))
    statistics = sum(2 * outputs * 4 for _, outputs, _ in BLOCKS)
    return (
        Term("all-reduce", 8, size, 1, "gradients"),
        Term("all-reduce", 8, statistics, 4, "batch statistics: mean and variance, forward and backward"),
    )


def _halos(images: int, side: int, shards: int) -> tuple[Term, ...]:
    """Rows that cross an edge. One row in one direction leaves all shards but one of a column of `shards`."""
    crossing = (shards - 1) / shards

    def rows(width: int, channels: int, count: int, why: str) -> Term:
        return Term("collective-permute", 2, images * width * channels * 4 * crossing, count, why)

    first, last = BLOCKS[0][0], BLOCKS[-1][1]
    return (
        rows(side, COLOURS, 2, "stem, a row from each side; images need no gradient"),
        rows(side, first, 1, "pooling 3x3 by 2, padded after only: a row from below"),
        rows(side // 2, first, 1, "its gradient: a row from above"),
        rows(side // 2, first, 8, "first block: two convolutions, both sides, forward and backward"),
        rows(side // 2, first, 1, "second block: the strided convolution takes a row from below"),
        rows(side // 4, last, 1, "its gradient: a row from above"),
        rows(side // 4, last, 4, "its second convolution, both sides, forward and backward"),
        rows(side // 4, last, 8, "third block"),
        Term("all-reduce", shards, images * last * 4, 1, "global average pooling"),
    )
