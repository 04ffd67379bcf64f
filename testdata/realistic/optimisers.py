"""Training steps of a fully sharded llama by optimisers that look at whole matrices: Muon, which makes the momentum of a matrix
orthogonal, and Adafactor, which keeps the means of rows and columns for the second moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic import llama
from testdata.realistic.layers import LENGTH
from testdata.scaled import Sizes

MOMENTUM, FIRST, SECOND, SMALL = 0.95, 0.9, 0.99, 1e-8
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
"""Of Newton and Schulz, by the coefficients above."""
LEAST_ROOT, LARGEST_ROOT = 1e-3, 1.0
"""Bounds of the root mean squares of a parameter and of an update of Adafactor."""


@dataclass(frozen=True)
class Optimiser:
    """`states` takes a parameter, and whether its first dimension is that of the layers, to what is kept of it, by name. `kept`
    takes a gradient and what is kept to what is kept after it. `update` takes the parameter, the gradient and what `kept` gave to
    what is subtracted from the parameter, divided by the rate."""

    states: Callable[[Argument, bool], dict[str, Argument]]
    kept: Callable[[jax.Array, Tree], Tree]
    update: Callable[[jax.Array, jax.Array, Tree], jax.Array]


def optimised(
    name: str,
    devices: int,
    *,
    annotated: bool,
    size: Sizes = llama.SMALL,
    layers: int = 8,
    tokens: int = llama.TOKENS,
    length: int = LENGTH,
) -> Program:
    """value_and_grad of `llama.llama`, its layers under `lax.scan`, and the update by the optimiser of that name. Annotated,
    updates are constrained to the parameters' shardings, too."""
    base = llama.llama("fsdp", devices, layers=layers, scan=True, annotated=annotated, size=size, tokens=tokens, length=length)
    weights, *batch = base.arguments
    chosen = OPTIMISERS[name]
    states = {
        part: jax.tree.map(partial(chosen.states, is_stacked=part == "layers"), parameters)
        for part, parameters in weights.items()
    }
    by_weight = common.specs(weights)
    loss = base.function.args[0]  # type: ignore[attr-defined]
    return Program(
        name=f"{name}_llama{layers}_scan_fsdp",
        axes=base.axes,
        function=partial(_step, loss=loss, optimiser=chosen, by_weight=by_weight if annotated else None),
        arguments=(weights, states, *batch),
        out_specs=(P(), by_weight, common.specs(states)),
        donated=(0, 1),
    )


def _step(
    parameters: Tree,
    states: Tree,
    *batch: jax.Array,
    loss: Callable[..., jax.Array],
    optimiser: Optimiser,
    by_weight: Tree | None,
) -> tuple[jax.Array, Tree, Tree]:
    value, gradients = jax.value_and_grad(loss)(parameters, *batch)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    states = jax.tree.map(optimiser.kept, gradients, states)
    updates = jax.tree.map(optimiser.update, parameters, gradients, states)
    if by_weight is not None:
        updates = jax.tree.map(jax.lax.with_sharding_constraint, updates, by_weight)
    return value, jax.tree.map(lambda p, u: (p - common.RATE * u).astype(p.dtype), parameters, updates), states


def _muon_states(argument: Argument, is_stacked: bool) -> dict[str, Argument]:
    """Those of Adam for all but the matrices of the layers."""
    moment = replace(argument, element="float32", centre=0.0)
    if is_stacked and len(argument.shape) > 2:
        return {"momentum": moment}
    return {"first": moment, "second": replace(moment, scale=0.1 * moment.scale, centre=moment.scale)}


def _muon_kept(gradient: jax.Array, state: Tree) -> Tree:
    if "momentum" in state:
        return {"momentum": MOMENTUM * state["momentum"] + gradient}
    first = FIRST * state["first"] + (1 - FIRST) * gradient
    return {"first": first, "second": SECOND * state["second"] + (1 - SECOND) * gradient**2}


def _muon_update(parameter: jax.Array, gradient: jax.Array, state: Tree) -> jax.Array:
    if "momentum" in state:
        rows, columns = parameter.shape[-2:]
        ahead = (MOMENTUM * state["momentum"] + gradient).astype(parameter.dtype)
        return _orthogonal(ahead).astype(jnp.float32) * max(1.0, columns / rows) ** 0.5
    return state["first"] / (jnp.sqrt(state["second"]) + SMALL)


def _orthogonal(matrices: jax.Array) -> jax.Array:
    """[layers, rows, columns] to the same, with all singular values near one."""
    rows, columns = matrices.shape[-2:]
    x = matrices.swapaxes(-1, -2) if rows > columns else matrices
    norm = jnp.sqrt(jnp.sum(x.astype(jnp.float32) ** 2, axis=(-1, -2), keepdims=True))
    x = x / (norm + SMALL).astype(x.dtype)
    first, third, fifth = QUINTIC
    for _ in range(ITERATIONS):
        square = x @ x.swapaxes(-1, -2)
        x = first * x + (third * square + fifth * square @ square) @ x
    return x.swapaxes(-1, -2) if rows > columns else x


def _adafactor_states(argument: Argument, is_stacked: bool) -> dict[str, Argument]:
    """The means along the last dimension and along the one before it; all of a vector."""
    moment = replace(argument, element="float32", scale=0.1, centre=1.0)
    if len(argument.shape) - is_stacked < 2:
        return {"whole": moment}
    *before, rows, columns = argument.shape
    *specs, by_row, by_column = argument.spec
    return {
        "rows": replace(moment, shape=(*before, rows), spec=P(*specs, by_row)),
        "columns": replace(moment, shape=(*before, columns), spec=P(*specs, by_column)),
    }


def _adafactor_kept(gradient: jax.Array, state: Tree) -> Tree:
    square = gradient**2 + 1e-30
    means = {"whole": lambda: square, "rows": lambda: jnp.mean(square, axis=-1), "columns": lambda: jnp.mean(square, axis=-2)}
    return {name: SECOND * kept + (1 - SECOND) * means[name]() for name, kept in state.items()}


def _adafactor_update(parameter: jax.Array, gradient: jax.Array, state: Tree) -> jax.Array:
    if "whole" in state:
        update = gradient * jax.lax.rsqrt(state["whole"])
    else:
        share = state["rows"] / jnp.mean(state["rows"], axis=-1, keepdims=True)
        update = gradient * jax.lax.rsqrt(share)[..., :, None] * jax.lax.rsqrt(state["columns"])[..., None, :]
    update = update / jnp.maximum(1.0, _root_mean_square(update) / LARGEST_ROOT)
    return update * jnp.maximum(LEAST_ROOT, _root_mean_square(parameter.astype(jnp.float32)))


def _root_mean_square(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(x**2))


OPTIMISERS = {
    "muon": Optimiser(_muon_states, _muon_kept, _muon_update),
    "adafactor": Optimiser(_adafactor_states, _adafactor_kept, _adafactor_update),
}
