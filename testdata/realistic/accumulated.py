"""Training steps that add up the gradients of several microbatches before they descend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Program, Tree
from testdata.realistic import layers as common


def accumulated(step: Program, microbatches: int) -> Program:
    """The step of `layers.descended` on so many batches, one after the other, whose gradients are added up in float32."""
    weights, *batches = step.arguments
    stacked = [replace(each, shape=(microbatches, *each.shape), spec=P(None, *each.spec)) for each in batches]
    function = partial(_descended, step.function.args[0])  # type: ignore[attr-defined]
    return replace(step, name=f"{step.name}_accumulated", function=function, arguments=(weights, *stacked))


def _descended(loss: Callable[..., jax.Array], parameters: Tree, *batches: jax.Array) -> tuple[jax.Array, Tree]:
    def microbatch(total: Tree, batch: tuple[jax.Array, ...]) -> tuple[Tree, None]:
        found = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(lambda sum_, each: sum_ + each.astype(sum_.dtype), total, found), None

    zeros = jnp.zeros(()), jax.tree.map(lambda parameter: jnp.zeros(parameter.shape, jnp.float32), parameters)
    (value, gradients), _ = jax.lax.scan(microbatch, zeros, batches)
    count = len(batches[0])
    return value / count, jax.tree.map(lambda p, g: p - (common.RATE / count * g).astype(p.dtype), parameters, gradients)
