"""A training step of a data-parallel GPT by Adam with ZeRO-1: parameters replicated, both moments in float32 and sharded.

As practitioners annotate it, gradients are constrained to the moments' sharding: that is where ZeRO-1 is said.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import gpt
from testdata.realistic import layers as common
from testdata.realistic.layers import Pins

LAYERS = 4
FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8


def adam_zero1(devices: int, *, annotated: bool, layers: int = LAYERS, size: gpt.Size = gpt.SIZE) -> Program:
    """value_and_grad and the update of a GPT whose layers stand one after the other."""
    style = common.STYLES["dp"]
    axes = common.grid(devices, style.model)
    weights = gpt.parameters(style, layers, scan=False, size=size)
    moments = jax.tree.map(_moment, weights)
    squares = jax.tree.map(lambda moment: replace(moment, scale=1e-6, centre=1e-5), moments)
    by_moment = common.specs(moments)
    batch = common.batch_of(axes, size)
    return Program(
        name="adam_zero1",
        axes=axes,
        function=partial(_step, pins=style.pins, by_moment=by_moment) if annotated else partial(_step, pins={}, by_moment=None),
        arguments=(weights, moments, squares, batch, batch),
        out_specs=(P(), common.specs(weights), by_moment, by_moment),
        donated=(0, 1, 2),
    )


def _moment(argument: Argument) -> Argument:
    """In float32, its first dimension split."""
    return replace(argument, spec=P("data", *argument.spec[1:]), element="float32", centre=0.0)


def _step(
    parameters: Tree, first: Tree, second: Tree, tokens: jax.Array, targets: jax.Array, *, pins: Pins, by_moment: Tree | None
) -> tuple[Tree, ...]:
    loss, gradients = jax.value_and_grad(partial(gpt.loss, pins=pins))(parameters, tokens, targets)
    if by_moment is not None:
        gradients = jax.tree.map(jax.lax.with_sharding_constraint, gradients, by_moment)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, first, wide)
    second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, second, wide)
    step = jax.tree.map(lambda m, v: common.RATE * m / (jnp.sqrt(v) + SMALL), first, second)
    return loss, jax.tree.map(lambda p, s: (p - s).astype(p.dtype), parameters, step), first, second
