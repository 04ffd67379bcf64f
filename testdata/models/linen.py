"""Flax's linen API."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from testdata.models.model import Model, integers, numbers, training

KEY = jax.random.key(0)


class _Classifier(nn.Module):
    """Convolutions, batch statistics, and a head."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=False, axis_name=None)(nn.Conv(32, (3, 3), strides=2)(images)))
        for features in (32, 64):
            shortcut = nn.Conv(features, (1, 1), strides=2)(x)
            y = nn.relu(nn.GroupNorm(8)(nn.Conv(features, (3, 3), strides=2)(x)))
            x = nn.relu(shortcut + nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3))(y)))
        return nn.Dense(128)(x.mean((1, 2)))


class _Decoder(nn.Module):
    """A causal transformer."""

    layers: int = 2
    width: int = 64

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(256, self.width)(tokens) + self.param("positions", nn.initializers.normal(), (tokens.shape[1], self.width))
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x += nn.SelfAttention(4, deterministic=True)(nn.LayerNorm()(x), mask)
            x += nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(256)(nn.LayerNorm()(x))


class _Recurrent(nn.Module):
    """Embedding, a recurrent layer in both directions, and a head."""

    cell: Any

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(256, 64)(tokens)
        return nn.Dense(256)(nn.Bidirectional(nn.RNN(self.cell(64)), nn.RNN(self.cell(64)))(x))


class _Mixer(nn.Module):
    """An MLP mixer with weights normalised."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(64, (4, 4), strides=4)(images).reshape(images.shape[0], -1, 64)
        for _ in range(2):
            y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
            x += jnp.swapaxes(nn.Dense(x.shape[1])(nn.gelu(nn.WeightNorm(nn.Dense(128))(y))), 1, 2)
            x += nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))
        return nn.Dense(128)(x.mean(1))


def _images(module: nn.Module) -> Model:
    images, labels = numbers(32, 32, 32, 3), integers(128, 32)
    variables = module.init(KEY, images)

    def loss(parameters: Any, batch: Any) -> Any:
        state = {name: value for name, value in variables.items() if name != "params"}
        logits, _ = module.apply({"params": parameters, **state}, batch[0], mutable=[*state])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return training(loss, variables["params"], (images, labels))


def _language(module: nn.Module, optimizer: Any = None) -> Model:
    tokens = integers(256, 32, 32)

    def loss(parameters: Any, tokens: Any) -> Any:
        logits = module.apply(parameters, tokens)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return training(loss, module.init(KEY, tokens), tokens, optimizer)


MODELS = {
    "linen_resnet": lambda: _images(_Classifier()),
    "linen_mixer": lambda: _images(_Mixer()),
    "linen_decoder": lambda: _language(_Decoder()),
    "linen_lstm": lambda: _language(_Recurrent(nn.OptimizedLSTMCell)),
    "linen_gru": lambda: _language(_Recurrent(nn.GRUCell)),
    "optax_adafactor": lambda: _language(_Decoder(width=128), optax.adafactor(1e-3)),
    "optax_lamb": lambda: _language(_Decoder(), optax.lamb(1e-3)),
    "optax_clipped_lion": lambda: _language(_Decoder(), optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3))),
    "optax_muon": lambda: _language(_Decoder(), optax.contrib.muon(1e-3)),
}
