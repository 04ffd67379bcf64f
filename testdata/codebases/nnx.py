"""Flax's nnx: `nnx.jit` of a train step that changes a model and an optimiser in place, and of one over a sharded model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from testdata.codebases.mesh import STEPS, integers, mesh_of, numbers, on


class _Network(nnx.Module):
    """Convolutions, batch normalisation and dropout: parameters, statistics and random state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = nnx.Conv(3, 16, (3, 3), rngs=rngs), nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(32 * 16, 10, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        x = nnx.avg_pool(nnx.relu(self.norm(self.first(images))), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return self.head(self.drop(x.reshape(x.shape[0], -1)))


def convolutions() -> Any:
    """A classifier of images, data parallel, with the library's metrics."""
    mesh = mesh_of(data=8)
    model = _Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    for each in (model, optimizer, metrics):
        nnx.update(each, on(mesh, nnx.state(each)))

    @nnx.jit
    def step(model: Any, optimizer: Any, metrics: Any, images: Any, labels: Any) -> None:
        def loss_of(model: Any) -> Any:
            logits = model(images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

        (loss, logits), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model)
        metrics.update(loss=loss, logits=logits, labels=labels)
        optimizer.update(model, gradients)

    for turn in range(STEPS):
        images, labels = on(mesh, (numbers(32, 16, 16, 3, seed=turn), integers(10, 32, seed=turn)), "data")
        step(model, optimizer, metrics, images, labels)
    return metrics.compute(), nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))


class _Block(nnx.Module):
    """A block of a decoder whose parameters say by metadata how they are sharded."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        self.norm = nnx.RMSNorm(64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
        self.up = nnx.Linear(64, 256, kernel_init=nnx.with_partitioning(init, (None, "model")), rngs=rngs)
        self.down = nnx.Linear(256, 64, kernel_init=nnx.with_partitioning(init, ("model", None)), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x += self.attention(self.norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(x)))


class _Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed, self.head = nnx.Embed(128, 64, rngs=rngs), nnx.Linear(64, 128, rngs=rngs)
        self.blocks = nnx.List([_Block(rngs) for _ in range(2)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded_decoder() -> Any:
    """A decoder whose parameters are created sharded, by `nnx.get_partition_spec`, on data x model."""
    mesh = mesh_of(data=2, model=4)

    @nnx.jit
    def create() -> Any:
        model = _Decoder(nnx.Rngs(0))
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return loss

    with jax.set_mesh(mesh):
        model, optimizer = create()
        losses = [step(model, optimizer, on(mesh, integers(128, 8, 17, seed=turn), "data")) for turn in range(STEPS)]
    return jnp.stack(losses), nnx.to_pure_dict(nnx.state(model, nnx.Param))
