"""Transformers of layers one after the other or of a scan, and the check that rings keep their numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.overlap.attention.attention_programs import VARIANTS, Attention, counted, gathered
from tests.overlap.attention.gradient_programs import distance

P = PartitionSpec
Pin = Callable[[jax.Array, PartitionSpec], jax.Array]
WIDTH, HEADS, SIZE, LENGTH = 32, 4, 8, 128
TOKENS, WHOLE = P("data", "sequence"), P("data")


def unpinned(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    del spec
    return x


@dataclass(frozen=True)
class Transformer:
    """Layers of attention and an MLP, queries where their tokens are, keys and values gathered; a mean of squares as the loss."""

    attention: Attention = VARIANTS["causal"]
    scanned: bool = True
    again: Callable[..., Any] = jax.checkpoint
    layers: int = 2
    key_heads: int = 2

    def weights(self, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
        shapes = {
            "query": (WIDTH, HEADS, SIZE),
            "key": (WIDTH, self.key_heads, SIZE),
            "value": (WIDTH, self.key_heads, SIZE),
            "out": (HEADS, SIZE, WIDTH),
            "up": (WIDTH, 2 * WIDTH),
            "down": (2 * WIDTH, WIDTH),
        }
        keys = jax.random.split(jax.random.key(0), len(shapes))
        return {
            name: (0.2 * jax.random.normal(key, (self.layers, *shape))).astype(dtype)
            for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def layer(self, x: jax.Array, weights: dict[str, jax.Array], pin: Pin) -> jax.Array:
        hidden = _normed(x)
        query, key, value = (jnp.einsum("btd,dhk->bthk", hidden, weights[name]) for name in ("query", "key", "value"))
        key, value = (pin(pin(each, TOKENS), WHOLE) for each in (key, value))
        mixed = pin(self.attention(pin(query, TOKENS), key, value), TOKENS)
        x = x + pin(jnp.einsum("bthk,hkd->btd", mixed, weights["out"]), TOKENS)
        return x + pin(jax.nn.silu(_normed(x) @ weights["up"]) @ weights["down"], TOKENS)

    def loss(self, weights: dict[str, jax.Array], x: jax.Array, pin: Pin = unpinned) -> jax.Array:
        layer = self.again(lambda x, weights: (self.layer(x, weights, pin), None))
        if self.scanned:
            x, _ = jax.lax.scan(layer, x, weights)
        else:
            for number in range(self.layers):
                x, _ = layer(x, jax.tree.map(lambda each, number=number: each[number], weights))
        return jnp.mean(x.astype(jnp.float32) ** 2)


def _normed(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def grid(count: int) -> jax.sharding.Mesh:
    return jax.make_mesh((8 // count, count), ("data", "sequence"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def step(model: Transformer, mesh: jax.sharding.Mesh, arguments: Any) -> ir.Module:
    """The partitioned gradients of the weights, before any ring."""

    def pin(x: jax.Array, spec: PartitionSpec) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    weights, x = NamedSharding(mesh, P()), NamedSharding(mesh, TOKENS)
    jitted = jax.jit(jax.value_and_grad(partial(model.loss, pin=pin)), in_shardings=(weights, x), out_shardings=(None, weights))
    module = gathered(jitted, *arguments)
    pipeline.run((OptimizeCollectives(0, target=CompileTarget.of("h100")),), module)
    return module


def drawn(model: Transformer, dtype: Any = jnp.float32) -> tuple[dict[str, jax.Array], jax.Array]:
    return model.weights(dtype), jax.random.normal(jax.random.key(1), (8, LENGTH, WIDTH), dtype)


def check(model: Transformer, count: int, dtype: Any = jnp.float32, gathers: int = 0, *, balance: bool = False) -> None:
    """Less memory, no gathered keys, and gradients about as near to those of float32 as one device's."""
    arguments = drawn(model, dtype)
    module = step(model, grid(count), arguments)
    before = memory(main_function(module)).temporaries
    pipeline.run((RingAttention(balance=balance),), module)
    assert (counted(module, "mesh.all_gather"), counted(module, "mesh.reduce_scatter")) == (gathers, 0)
    assert memory(main_function(module)).temporaries < before
    alike = jax.tree.leaves(jax.jit(jax.value_and_grad(model.loss))(*arguments))
    exact = jax.tree.leaves(jax.jit(jax.value_and_grad(model.loss))(*jax.tree.map(lambda x: x.astype(jnp.float32), arguments)))
    found = jax.tree.leaves(meshbridge.compile(module)(*jax.tree.leaves(arguments)))
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in alike]
    np.testing.assert_allclose(found[0], exact[0], rtol=float(jnp.finfo(dtype).eps) / 4 + 1e-5)
    for each, plain, wanted in zip(found[1:], alike[1:], exact[1:], strict=True):
        assert distance(each, wanted) <= 2 * distance(plain, wanted) + 1e-5 * distance(wanted, 0)
