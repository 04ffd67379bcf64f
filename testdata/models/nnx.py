"""Flax's nnx API."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from testdata.models.model import Model, integers, numbers, training


class _Encoder(nnx.Module):
    """A transformer that reads in both directions, its layers under scan."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def layers(rngs: nnx.Rngs) -> _Layer:
            return _Layer(rngs)

        self.embed, self.layers, self.head = nnx.Embed(256, 64, rngs=rngs), layers(rngs), nnx.Linear(64, 256, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def through(x: Any, layer: _Layer) -> Any:
            return layer(x)

        return self.head(through(self.embed(tokens), self.layers))


class _Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before, self.between = nnx.LayerNorm(64, rngs=rngs), nnx.RMSNorm(64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x += self.attention(self.before(x))
        return x + self.down(nnx.silu(self.up(self.between(x))))


class _Autoencoder(nnx.Module):
    """A variational autoencoder of images, its noise a function of the image."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down = nnx.Conv(3, 32, (3, 3), strides=2, rngs=rngs)
        self.middle = nnx.Linear(32, 2 * 16, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 3, (4, 4), strides=2, rngs=rngs)

    def __call__(self, images: Any) -> tuple[Any, Any]:
        mean, spread = jnp.split(self.middle(nnx.relu(self.down(images))), 2, axis=-1)
        code = mean + jnp.exp(spread) * jax.random.normal(jax.random.key(1), mean.shape)
        return self.up(code), jnp.mean(mean**2 + jnp.exp(2 * spread) - 2 * spread)


def _encoder() -> Model:
    graph, parameters = nnx.split(_Encoder(nnx.Rngs(0)))

    def loss(parameters: Any, tokens: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(nnx.merge(graph, parameters)(tokens), tokens).mean()

    return training(loss, parameters, integers(256, 32, 32))


def _autoencoder() -> Model:
    graph, parameters = nnx.split(_Autoencoder(nnx.Rngs(0)))

    def loss(parameters: Any, images: Any) -> Any:
        drawn, apart = nnx.merge(graph, parameters)(images)
        return jnp.mean((drawn - images) ** 2) + apart

    return training(loss, parameters, numbers(32, 16, 16, 3))


MODELS = {"nnx_encoder": _encoder, "nnx_autoencoder": _autoencoder}
