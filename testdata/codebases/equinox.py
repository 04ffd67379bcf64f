"""Equinox: `eqx.filter_jit` over modules that hold functions beside arrays, and `eqx.filter_shard` within."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from testdata.codebases.mesh import STEPS, fsdp, integers, mesh_of, numbers, on


def data_parallel() -> Any:
    """The library's guide of parallelism: a model on all devices, a batch along them, both held by `eqx.filter_shard`."""
    mesh = mesh_of(batch=8)
    everywhere, along = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
    model = eqx.nn.MLP(32, 8, 64, 2, key=jax.random.key(0))
    optim = optax.sgd(0.1, momentum=0.9)
    state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_value_and_grad
    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Any, model: Any, state: Any) -> Any:
        model, state = eqx.filter_shard((model, state), everywhere)
        x, y = eqx.filter_shard(batch, along)
        loss, gradients = loss_of(model, x, y)
        updates, state = optim.update(gradients, state, model)
        return eqx.filter_shard((eqx.apply_updates(model, updates), state), everywhere), loss

    model, state = eqx.filter_shard((model, state), everywhere)
    losses = []
    for turn in range(STEPS):
        batch = eqx.filter_shard((numbers(64, 32, seed=turn), numbers(64, 8, seed=turn)), along)
        (model, state), loss = step(batch, model, state)
        losses.append(loss)
    return losses, eqx.filter(model, eqx.is_array)


class _Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        first, second, third = jax.random.split(key, 3)
        self.attention, self.norm = eqx.nn.MultiheadAttention(4, 64, key=first), eqx.nn.LayerNorm(64)
        self.up, self.down = eqx.nn.Linear(64, 256, key=second), eqx.nn.Linear(256, 64, key=third)
        self.drop = eqx.nn.Dropout(0.1)

    def __call__(self, x: Any, key: Any) -> Any:
        normed = jax.vmap(self.norm)(x)
        x += self.attention(normed, normed, normed, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + self.drop(jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x))), key=key)


class _Decoder(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[_Block]
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        first, second, *others = jax.random.split(key, 4)
        self.embed, self.head = eqx.nn.Embedding(128, 64, key=first), eqx.nn.Linear(64, 128, key=second)
        self.blocks = [_Block(each) for each in others]

    def __call__(self, tokens: Any, key: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        for block, each in zip(self.blocks, jax.random.split(key, len(self.blocks)), strict=True):
            x = eqx.filter_checkpoint(block)(x, each)
        return jax.vmap(self.head)(x)


def decoder() -> Any:
    """A decoder with dropout and `eqx.filter_checkpoint`, its parameters sharded as FSDP."""
    mesh = mesh_of(data=8)
    model = _Decoder(jax.random.key(0))
    model = jax.tree.map(lambda leaf: fsdp(mesh)(leaf) if eqx.is_array(leaf) else leaf, model)

    @eqx.filter_jit
    def step(model: Any, tokens: Any, key: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss_of(model: Any) -> Any:
            logits = jax.vmap(model)(tokens[:, :-1], jax.random.split(key, len(tokens)))
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, gradients = loss_of(model)
        return eqx.apply_updates(model, jax.tree.map(lambda gradient: -0.1 * gradient, gradients)), loss

    losses = []
    for turn in range(STEPS):
        model, loss = step(model, on(mesh, integers(128, 8, 17, seed=turn), "data"), jax.random.key(turn))
        losses.append(loss)
    return losses, eqx.filter(model, eqx.is_array)
