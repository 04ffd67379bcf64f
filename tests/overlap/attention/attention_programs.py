"""Attention as people write it, and the partitioned programs of it that rings are made of."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.builder import shape_of
from meshbridge.ir.mlir import find, ir
from meshbridge.ops.einsum import DOT, Einsum

P = PartitionSpec
Attention = Callable[..., jax.Array]


def hand_written(score: Callable[[jax.Array], jax.Array], weigh: Callable[[jax.Array], jax.Array] = jax.nn.softmax) -> Attention:
    """Attention on [batch, length, heads, size], of which keys and values may have fewer heads."""

    def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        key, value = (jnp.repeat(each, query.shape[2] // each.shape[2], axis=2) for each in (key, value))
        scores = score(jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5)
        return jnp.einsum("bhqk,bkhd->bqhd", weigh(scores).astype(value.dtype), value)

    return attention


def stopped(scores: jax.Array) -> jax.Array:
    """A softmax as people write it."""
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return exponentials / exponentials.sum(-1, keepdims=True)


def guarded(scores: jax.Array) -> jax.Array:
    """Zero where no key counts."""
    largest = scores.max(-1, keepdims=True)
    exponentials = jnp.exp(scores - jnp.where(jnp.isfinite(largest), largest, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def thinned(scores: jax.Array) -> jax.Array:
    """Without some of the weights, as dropout leaves them."""
    position = jnp.arange(scores.shape[-1])
    return jnp.where(position % 3 == 1, jax.nn.softmax(scores) / 0.6, 0)


def by_reciprocal(scores: jax.Array) -> jax.Array:
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return exponentials * (1 / exponentials.sum(-1, keepdims=True))


def positions(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of queries and of keys."""
    rows, columns = scores.shape[-2:]
    return jnp.arange(rows)[:, None], jnp.arange(columns)[None]


def causal(scores: jax.Array, behind: int = 0, fill: float = -jnp.inf) -> jax.Array:
    """Keys that stand at least so much before a query."""
    query, key = positions(scores)
    return jnp.where(query - key >= behind, scores, jnp.asarray(fill, scores.dtype))


def windowed(scores: jax.Array) -> jax.Array:
    query, key = positions(scores)
    return jnp.where((query >= key) & (query - key < 5), scores, -jnp.inf)


def sloped(scores: jax.Array) -> jax.Array:
    """A bias by distance, and a cap on scores."""
    query, key = positions(scores)
    return 5 * jnp.tanh(scores / 5) - 0.1 * jnp.abs(query - key).astype(scores.dtype)


def padded_left(scores: jax.Array) -> jax.Array:
    """Which keys a causal mask shows of a sequence that begins with 20 tokens of padding: none to the first queries."""
    query, key = positions(scores)
    return (query >= key) & (key >= 20)


def zeroed(scores: jax.Array) -> jax.Array:
    """Weights of zero where no key counts, instead of NaN."""
    kept = padded_left(scores)
    return jnp.where(kept, jax.nn.softmax(jnp.where(kept, scores, -jnp.inf)), 0)


def zeroed_rows(scores: jax.Array) -> jax.Array:
    """The same, by a mask of one number for each query."""
    kept = padded_left(scores)
    return jnp.where(kept.any(-1, keepdims=True), stopped(jnp.where(kept, scores, -jnp.inf)), 0)


def emptied(scores: jax.Array) -> jax.Array:
    """Exponentials without those of hidden keys, NaN where no key counts: the division follows the mask."""
    exponentials = jnp.where(padded_left(scores), jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    return exponentials / exponentials.sum(-1, keepdims=True)


def library(**options: Any) -> Attention:
    return lambda *qkv: jax.nn.dot_product_attention(*qkv, **options)


def logarithmic(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Weights without their sum, which divides the result; and the logarithm of the sum beside it."""
    key, value = (jnp.repeat(each, query.shape[2] // each.shape[2], axis=2) for each in (key, value))
    scores = causal(jnp.einsum("bqhd,bkhd->bhqk", query, key))
    largest = scores.max(-1)
    exponentials = jnp.exp(scores - largest[..., None])
    total = exponentials.sum(-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", exponentials, value) / total.transpose(0, 2, 1)[..., None]
    return jnp.concatenate([mixed, (largest + jnp.log(total)).transpose(0, 2, 1)[..., None]], -1)


def unnormalised(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Exponentials of small scores, from which nothing is subtracted."""
    exponentials = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", query, jnp.repeat(key, query.shape[2] // key.shape[2], 2)) / 16)
    return jnp.einsum("bhqk,bkhd->bqhd", exponentials, jnp.repeat(value, query.shape[2] // value.shape[2], 2))


def rotated(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Keys whose features are turned by their positions once they are gathered."""
    half = key.shape[-1] // 2
    angles = jnp.arange(key.shape[1], dtype=key.dtype)[:, None, None] / 7
    turned = jnp.concatenate([-key[..., half:], key[..., :half]], -1)
    return library(is_causal=True)(query, key * jnp.cos(angles) + turned * jnp.sin(angles), value)


VARIANTS: dict[str, Attention] = {
    "library": library(),
    "library_causal": library(is_causal=True),
    "library_window": library(local_window_size=(7, 0)),
    "plain": hand_written(lambda scores: scores),
    "causal": hand_written(causal, stopped),
    "wide": hand_written(lambda scores: causal(scores.astype(jnp.float32), fill=-1e9)),
    "masked_rows": hand_written(lambda scores: causal(scores, 3), stopped),
    "masked_rows_finite": hand_written(lambda scores: causal(scores, 3, -1e4)),
    "masked_rows_guarded": hand_written(lambda scores: causal(scores, 3), guarded),
    "masked_rows_zeroed": hand_written(lambda scores: scores, zeroed),
    "masked_rows_zeroed_whole": hand_written(lambda scores: scores, zeroed_rows),
    "masked_rows_emptied": hand_written(lambda scores: scores, emptied),
    "by_reciprocal": hand_written(causal, by_reciprocal),
    "late_keys": hand_written(lambda scores: jnp.where(positions(scores)[1] >= 40, scores - 200, -jnp.inf), stopped),
    "window": hand_written(windowed, stopped),
    "sloped": hand_written(sloped),
    "thinned": hand_written(causal, thinned),
    "rotated": rotated,
    "logarithmic": logarithmic,
    "unnormalised": unnormalised,
}


def sharded(attention: Attention, mesh: jax.sharding.Mesh, axis: str, *others: PartitionSpec) -> Any:
    """Queries stay where their tokens are; keys and values are gathered."""
    tokens = NamedSharding(mesh, P("data" if axis == "model" else None, axis))
    whole = NamedSharding(mesh, P("data" if axis == "model" else None))
    pinned = jax.lax.with_sharding_constraint

    def function(query: jax.Array, key: jax.Array, value: jax.Array, *rest: jax.Array) -> jax.Array:
        query, key, value = pinned(query, tokens), pinned(key, whole), pinned(value, whole)
        return pinned(attention(query, key, value, *rest), tokens)

    shardings = (tokens, tokens, tokens, *(NamedSharding(mesh, spec) for spec in others))
    return jax.jit(function, in_shardings=shardings, out_shardings=tokens)


def drawn(dtype: Any = jnp.float32, *, key_heads: int = 4, length: int = 64, size: int = 16) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    heads = (4, key_heads, key_heads)
    return [2 * jax.random.normal(key, (2, length, count, size), dtype) for key, count in zip(keys, heads, strict=True)]


def gathered(jitted: Any, *arguments: Any) -> ir.Module:
    """The program as it is partitioned, before any collective is hidden."""
    module: ir.Module = meshbridge.partition(jitted, *arguments, emit="mesh", machine="h100", collectives="off")
    return module


def counted(module: ir.Module, name: str) -> int:
    return len(find(module.operation, [name]))


def check_numbers(module: ir.Module, attention: Attention, arguments: list[jax.Array]) -> None:
    """Whether the first result of a partitioned program is that of `attention` on one device, but for rounding."""
    found = np.asarray(jax.tree.leaves(meshbridge.compile(module)(*arguments))[0])
    right = np.asarray(jax.jit(attention)(*arguments))
    assert found.dtype == right.dtype
    found, right = found.astype(np.float32), right.astype(np.float32)
    coarse = 1e-5 if arguments[0].dtype == jnp.float32 else 4 * float(jnp.finfo(arguments[0].dtype).eps)
    np.testing.assert_allclose(found, right, rtol=0, atol=coarse * np.nanmax(np.abs(right)))


def multiplied(module: ir.Module) -> int:
    """Multiplications of all products."""
    total = 0
    for op in find(module.operation, [DOT]):
        product = Einsum(op)
        sizes = dict(
            zip((*product.loops[0], *product.loops[1]), [*shape_of(op.operands[0]), *shape_of(op.operands[1])], strict=True)
        )
        total += prod(sizes.values())
    return total
