"""Equinox, and flowjax's flows, which are made with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.distributions import Normal
from flowjax.flows import coupling_flow, masked_autoregressive_flow

from testdata.models.model import Model, numbers, training

KEYS = jax.random.split(jax.random.key(0), 8)


def _trained(model: Any, loss: Callable[[Any, Any], Any], batch: Any) -> Model:
    """The arrays of an Equinox model are its parameters."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return training(lambda arrays, batch: loss(eqx.combine(arrays, rest), batch), arrays, batch)


def _attention() -> Model:
    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        norm: eqx.nn.LayerNorm

        def __call__(self, x: Any) -> Any:
            x += self.attention(*[jax.vmap(self.norm)(x)] * 3)
            return x + jax.vmap(self.mlp)(x)

    block = Block(eqx.nn.MultiheadAttention(4, 64, key=KEYS[0]), eqx.nn.MLP(64, 64, 256, 1, key=KEYS[1]), eqx.nn.LayerNorm(64))
    return _trained(block, lambda block, x: jnp.mean(jax.vmap(block)(x) ** 2), numbers(32, 32, 64))


def _convolution() -> Model:
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 32, 3, padding=1, key=KEYS[0]),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(32, 64, 3, key=KEYS[1]),
            eqx.nn.AdaptiveAvgPool2d((2, 2)),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(256, 128, key=KEYS[2]),
        ]
    )
    return _trained(model, lambda model, x: jnp.mean(jax.vmap(model)(x) ** 2), numbers(32, 3, 32, 32))


def _recurrent() -> Model:
    cell = eqx.nn.GRUCell(64, 64, key=KEYS[0])

    def loss(cell: Any, xs: Any) -> Any:
        def through(xs: Any) -> Any:
            return jax.lax.scan(lambda state, x: (cell(x, state), None), jnp.zeros(64), xs)[0]

        return jnp.mean(jax.vmap(through)(xs) ** 2)

    return _trained(cell, loss, numbers(64, 32, 64))


def _flow(make: Callable[..., Any]) -> Model:
    flow = make(KEYS[0], base_dist=Normal(jnp.zeros(16)), flow_layers=3, nn_width=64)

    def loss(flow: Any, x: Any) -> Any:
        from paramax import unwrap

        return -unwrap(flow).log_prob(x).mean()

    return _trained(flow, loss, numbers(256, 16))


MODELS = {
    "equinox_attention": _attention,
    "equinox_convolution": _convolution,
    "equinox_gru": _recurrent,
    "flowjax_coupling": lambda: _flow(coupling_flow),
    "flowjax_autoregressive": lambda: _flow(masked_autoregressive_flow),
}
