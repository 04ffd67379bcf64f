"""A training step of low-rank adapters on a frozen, fully sharded llama: only the adapters have gradients."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic import llama
from testdata.realistic.layers import weight
from testdata.scaled import Sizes

RANK = 16
ADAPTED = ("query", "value")
"""The matrices of a layer that have an adapter."""


def lora(
    style: str,
    devices: int,
    *,
    layers: int,
    scan: bool,
    annotated: bool,
    size: Sizes = llama.SIZE,
    tokens: int = llama.TOKENS,
    length: int = common.LENGTH,
) -> Program:
    """value_and_grad by the adapters, which are replicated, and gradient descent; the frozen parameters and the batch are as
    `llama.llama` has them."""
    base = llama.llama(style, devices, layers=layers, scan=scan, annotated=annotated, size=size, tokens=tokens, length=length)
    frozen, *batch = base.arguments
    one_layer = {name: _adapter(_matrix(frozen["layers"], name, scan=scan)) for name in ADAPTED}
    adapters = common.stacked(one_layer, layers, scan=scan)
    return Program(
        name=f"lora{layers}_{'scan_' if scan else ''}{style}",
        axes=base.axes,
        function=partial(_step, pins=common.STYLES[style].pins if annotated else {}, size=size),
        arguments=(adapters, frozen, *batch),
        out_specs=(P(), common.specs(adapters)),
        donated=(0,),
    )


def _matrix(layers: Tree, name: str, *, scan: bool) -> tuple[int, int]:
    shape: tuple[int, int] = layers[name].shape[1:] if scan else layers[0][name].shape
    return shape


def _adapter(matrix: tuple[int, int]) -> dict[str, Argument]:
    rows, columns = matrix
    return {"down": weight(rows, RANK, spec=P()), "up": weight(RANK, columns, spec=P())}


def _step(adapters: Tree, frozen: Tree, *batch: jax.Array, size: Sizes, pins: common.Pins) -> tuple[jax.Array, Tree]:
    def loss(adapters: Tree) -> jax.Array:
        return llama.loss({**frozen, "layers": _adapted(frozen["layers"], adapters)}, *batch, size=size, pins=pins)

    value, gradients = jax.value_and_grad(loss)(adapters)
    return value, jax.tree.map(lambda p, g: p - jnp.asarray(common.RATE, p.dtype) * g, adapters, gradients)


def _adapted(layers: Tree, adapters: Tree) -> Tree:
    """The layers, whose adapted matrices are as `layers.product` takes them."""
    if isinstance(layers, list):
        return [_adapted(layer, adapter) for layer, adapter in zip(layers, adapters, strict=True)]
    return {**layers, **{name: {"frozen": layers[name], **adapter} for name, adapter in adapters.items()}}
