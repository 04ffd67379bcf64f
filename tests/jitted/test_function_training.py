"""Training loops, whose states are trees of the kinds that libraries have, beside `jax.jit` on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from tests.jitted.programs import RANDOM, check_same, plans

INPUTS = RANDOM.normal(size=(4, 16, 32)).astype(np.float32)
TARGETS = RANDOM.normal(size=(4, 16, 8)).astype(np.float32)


@dataclass
class Module:
    """As Equinox has models: arrays are leaves, the rest is a part of the tree's structure."""

    first: Any
    second: Any
    activation: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(x @ self.first) @ self.second  # type: ignore[no-any-return]


jax.tree_util.register_dataclass(Module, data_fields=["first", "second"], meta_fields=["activation"])


class Variable:
    """As Flax's nnx has state: a node of its own, with metadata that is compared."""

    def __init__(self, value: Any, kind: str) -> None:
        self.value, self.kind = value, kind


jax.tree_util.register_pytree_with_keys(
    Variable,
    lambda node: (((jax.tree_util.GetAttrKey("value"), node.value),), node.kind),
    lambda kind, children: Variable(children[0], kind),
)


class Adam(NamedTuple):
    """As optax has states of optimisers."""

    count: Any
    mean: Any
    square: Any


def as_dictionary(weights: list[Any]) -> Any:
    return {"params": {"Dense_0": {"kernel": weights[0]}, "Dense_1": {"kernel": weights[1]}}}


def apply_dictionary(params: Any, x: jax.Array) -> jax.Array:
    layers = params["params"]
    return jax.nn.gelu(x @ layers["Dense_0"]["kernel"]) @ layers["Dense_1"]["kernel"]  # type: ignore[no-any-return]


def as_variables(weights: list[Any]) -> Any:
    return {"first": Variable(weights[0], "Param"), "second": Variable(weights[1], "Param")}


def apply_variables(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["first"].value) @ params["second"].value


MODELS = {
    "dictionaries": (as_dictionary, apply_dictionary),
    "variables": (as_variables, apply_variables),
    "modules": (lambda weights: Module(*weights, jnp.tanh), lambda params, x: params(x)),
}


def trained(step: Any, state: Any) -> Any:
    losses = []
    for x, y in zip(INPUTS, TARGETS, strict=True):
        state, loss = step(state, x, y)
        losses.append(loss)
    return state, losses


@pytest.mark.parametrize(("model", "sharded"), [*((model, "in_shardings") for model in MODELS), ("modules", "arguments")])
def test_a_loop(mesh: Mesh, model: str, sharded: str) -> None:
    make, apply = MODELS[model]

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, adam, key = state
        key, own = jax.random.split(key)
        kept = jax.random.bernoulli(own, 0.9, x.shape)
        loss, gradients = jax.value_and_grad(lambda params: ((apply(params, x * kept) - y) ** 2).mean())(params)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mean, gradients)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, adam.square, gradients)
        params = jax.tree.map(lambda p, m, s: p - 0.01 * m / (jnp.sqrt(s) + 1e-3), params, mean, square)
        return (params, Adam(adam.count + 1, mean, square), key), loss

    random = np.random.default_rng(1)
    weights = [random.normal(size=(32, 64)).astype(np.float32) / 6, random.normal(size=(64, 8)).astype(np.float32) / 8]
    params = make(weights)
    zeros = jax.tree.map(np.zeros_like, params)

    def state() -> Any:
        return params, Adam(np.int32(0), zeros, zeros), jax.random.key(0)

    def sharding(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, P(None, "model") if leaf.shape == (32, 64) else P())

    shardings, rows = jax.tree.map(sharding, state()), NamedSharding(mesh, P("data"))
    options = {"in_shardings": (shardings, rows, rows), "out_shardings": (shardings, None)} if sharded == "in_shardings" else {}
    jitted = meshbridge.jit(step, donate_argnums=0, **options)
    with plans() as planned:
        found = trained(jitted, jax.device_put(state(), shardings))
    check_same(found, trained(jax.jit(step), state()))
    assert len(planned) <= 2  # the first state's shardings, and those of every other
    assert "sdy.manual_computation" in jitted.partitioned_text(found[0], INPUTS[0], TARGETS[0])
