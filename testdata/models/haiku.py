"""Haiku."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from testdata.models.model import Model, integers, numbers, training


def _model(network: Callable[[Any], Any], batch: Any) -> Model:
    """Trains a network to classify."""
    transformed = hk.transform_with_state(network)
    parameters, state = transformed.init(jax.random.key(0), batch[0])

    def loss(parameters: Any, batch: Any) -> Any:
        logits, _ = transformed.apply(parameters, state, jax.random.key(1), batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return training(loss, parameters, batch)


def _resnet(images: Any) -> Any:
    return hk.nets.ResNet([1, 1, 1, 1], 128, channels_per_group=[16, 32, 64, 64], bottleneck=False)(images, is_training=True)


def _attention(x: Any) -> Any:
    for _ in range(2):
        normal = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        x += hk.MultiHeadAttention(4, 16, w_init_scale=1.0, model_size=64)(normal, normal, normal)
        x += hk.dropout(hk.next_rng_key(), 0.1, hk.nets.MLP([256, 64])(x))
    return hk.Linear(128)(x.mean(1))


def _lstm(x: Any) -> Any:
    core = hk.DeepRNN([hk.LSTM(64), jax.nn.relu, hk.LSTM(64)])
    found, _ = hk.dynamic_unroll(core, jnp.swapaxes(x, 0, 1), core.initial_state(x.shape[0]))
    return hk.Linear(128)(found[-1])


def _vectors() -> Any:
    return numbers(32, 32, 64), integers(128, 32)


MODELS = {
    "haiku_resnet": lambda: _model(_resnet, (numbers(32, 64, 64, 3), integers(128, 32))),
    "haiku_attention": lambda: _model(_attention, _vectors()),
    "haiku_lstm": lambda: _model(_lstm, _vectors()),
}
