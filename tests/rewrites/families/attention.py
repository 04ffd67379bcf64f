"""Attention: over keys that stay sharded (`delay-scaling`), and of queries whose keys are gathered (`ring-attention`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import jax
import jax.numpy as jnp

from tests.rewrites.drawn import Argument, P, Pin, Program, draw_dtype

Weigh = Callable[[Any, Any], Any]
"""Weights of scores, and of what is kept of them: None for all."""


def _masked(scores: Any, kept: Any, fill: float = -jnp.inf) -> Any:
    return scores if kept is None else jnp.where(kept, scores, jnp.asarray(fill, scores.dtype))


def softmax(scores: Any, kept: Any) -> Any:
    return jax.nn.softmax(_masked(scores, kept))


def filled(scores: Any, kept: Any) -> Any:
    return jax.nn.softmax(_masked(scores, kept, -1e9))


def where(scores: Any, kept: Any) -> Any:
    """An empty row has zeros."""
    return jax.nn.softmax(scores, where=None if kept is None else jnp.broadcast_to(kept, scores.shape))


def hidden_after(scores: Any, kept: Any) -> Any:
    """Weights of an empty row are NaN, and are replaced."""
    weights = softmax(scores, kept)
    return weights if kept is None else jnp.where(kept, weights, 0)


def hidden_rows(scores: Any, kept: Any) -> Any:
    """Weights of an empty row alone are replaced."""
    weights = softmax(scores, kept)
    return weights if kept is None else jnp.where(kept.any(-1, keepdims=True), weights, 0)


def thinned(scores: Any, kept: Any) -> Any:
    weights = softmax(scores, kept)
    return jnp.where(jnp.arange(scores.shape[-1]) % 3 == 1, weights / 0.6, 0)


def multiplied(scores: Any, kept: Any) -> Any:
    weights = softmax(scores, kept)
    return weights * (jnp.arange(scores.shape[-1]) % 3 == 1).astype(weights.dtype)


def stopped(scores: Any, kept: Any) -> Any:
    scores = _masked(scores, kept)
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return exponentials / exponentials.sum(-1, keepdims=True)


def guarded(scores: Any, kept: Any) -> Any:
    scores = _masked(scores, kept)
    largest = scores.max(-1, keepdims=True)
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0)))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def by_reciprocal(scores: Any, kept: Any) -> Any:
    scores = _masked(scores, kept)
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials * (1 / exponentials.sum(-1, keepdims=True))


def masked_exponentials(scores: Any, kept: Any) -> Any:
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    exponentials = exponentials if kept is None else jnp.where(kept, exponentials, 0)
    return exponentials / exponentials.sum(-1, keepdims=True)


def masked_quotient(scores: Any, kept: Any) -> Any:
    """As `masked_exponentials`, of which what is hidden is replaced after the division too."""
    weights = masked_exponentials(scores, kept)
    return weights if kept is None else jnp.where(kept, weights, 0)


WEIGHS: tuple[Weigh, ...] = (
    softmax,
    filled,
    where,
    hidden_after,
    hidden_rows,
    thinned,
    multiplied,
    stopped,
    guarded,
    by_reciprocal,
    masked_exponentials,
    masked_quotient,
)

DELAYED: tuple[Weigh, ...] = (softmax, filled, multiplied, stopped, guarded, by_reciprocal)
"""Of which a division surely scales a sum as it scales the terms."""

MASKS = ("none", "causal", "behind", "window", "lengths", "argument", "late")


def _kept(mask: str, queries: int, keys: int, argument: Any) -> Any:
    """Which keys a query sees, [queries, keys]; rows of `behind`, `argument` and `late` may be empty."""
    query, key = jnp.arange(queries)[:, None], jnp.arange(keys)[None]
    return {
        "none": None,
        "causal": query >= key,
        "behind": query - key >= 3,
        "window": (query >= key) & (query - key < 5),
        "lengths": jnp.broadcast_to(key < keys - 3, (queries, keys)),
        "argument": argument,
        "late": (key >= keys // 2) & (query > 2),
    }[mask]


def _extra(mask: str, shape: tuple[int, ...], spec: P) -> tuple[Argument, ...]:
    return (Argument(shape, jnp.bool_, spec),) if mask == "argument" else ()


def cached(random: Random) -> Program:
    """Attention of some queries to a cache that is sharded along its tokens; perhaps a product after it that contracts heads."""
    weigh = random.choice(DELAYED if random.random() < 0.85 else WEIGHS)
    mask, dtype = random.choice(MASKS), draw_dtype(random)
    mesh, keys_axis, batch_axis = random.choice([((2, 4), "b", "a"), ((4, 2), "b", "a"), ((4,), "a", None), ((2, 4), "a", "b")])
    wide, project = random.random() < 0.5, random.random() < 0.15
    batch, heads, length, size = 4, 2, 16, 4
    cache = P(batch_axis, keys_axis)

    def function(pin: Pin, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        weight, rest = (rest[0], rest[1:]) if project else (None, rest)
        scores = jnp.einsum("bhd,bkhd->bhk", query, key)
        scores = scores.astype(jnp.float32) if wide else scores
        kept = _kept(mask, batch, length, *(rest or (None,)))
        weights = weigh(scores, None if kept is None else kept[:, None]).astype(value.dtype)
        mixed = pin(jnp.einsum("bhk,bkhd->bhd", weights, value), P(batch_axis))
        return mixed.reshape(batch, -1) @ weight if project else mixed

    return Program(
        f"cached {weigh.__name__} {mask}{' projected' * project}",
        function,
        (
            Argument((batch, heads, size), dtype, P(batch_axis)),
            Argument((batch, length, heads, size), dtype, cache),
            Argument((batch, length, heads, size), dtype, cache),
            # An infinity that multiplies a partial value is NaN (docs/propagation.md).
            *((Argument((heads * size, 8), dtype, P(keys_axis), special=False),) if project else ()),
            *_extra(mask, (batch, length), P(batch_axis, keys_axis)),
        ),
        results=P(batch_axis),
        mesh=mesh,
        shortened=True,
    )


def ring(random: Random, *, balance: bool = False) -> Program:
    """Attention whose queries stay where their tokens are, and whose keys and values are gathered."""
    weigh = random.choice(WEIGHS)
    mask = random.choice([each for each in MASKS if each in ("causal", "behind", "window")] if balance else MASKS)
    dtype = draw_dtype(random)
    mesh, along, batch_axis = random.choice(
        [((2, 4), "b", "a"), ((4, 2), "b", "a"), ((4,), "a", None), ((8,), "a", None), ((2, 4), "a", "b")]
    )
    wide, key_heads = random.random() < 0.5, random.choice([1, 2])
    batch, heads, length, size = 4, 2, 16, 4
    tokens, whole = P(batch_axis, along), P(batch_axis)

    def function(pin: Pin, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        query, key, value = pin(query, tokens), pin(key, whole), pin(value, whole)
        key, value = (jnp.repeat(each, heads // key_heads, axis=2) for each in (key, value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        scores = scores.astype(jnp.float32) if wide else scores
        weights = weigh(scores, _kept(mask, length, length, *(rest or (None,)))).astype(value.dtype)
        return pin(jnp.einsum("bhqk,bkhd->bqhd", weights, value), tokens)

    return Program(
        f"ring {weigh.__name__} {mask}",
        function,
        (
            Argument((batch, length, heads, size), dtype, tokens),
            Argument((batch, length, key_heads, size), dtype, tokens),
            # A balanced ring does not multiply what a mask hides by zero.
            Argument((batch, length, key_heads, size), dtype, tokens, special=not balance),
            *_extra(mask, (length, length), random.choice([P(), P(along)])),
        ),
        results=tokens,
        mesh=mesh,
        options="balance=true" if balance else "",
    )


def balanced(random: Random) -> Program:
    """The same, of which half of the products are hidden."""
    return ring(random, balance=True)


def gradients(random: Random) -> Program:
    """The value and the gradients of a ring, computed again or kept; balanced or not."""
    balance, again = random.random() < 0.4, random.random() < 0.5
    forward = ring(random, balance=balance)
    tokens = forward.results

    def function(pin: Pin, *arguments: Any) -> Any:
        def attention(*qkv: Any) -> Any:
            return forward.function(pin, *qkv, *arguments[3:])

        run = jax.checkpoint(attention) if again else attention
        return jax.value_and_grad(lambda *qkv: (run(*qkv).astype(jnp.float32) ** 2).sum(), (0, 1, 2))(*arguments[:3])

    return Program(
        f"gradients of {forward.what}{' again' * again}",
        function,
        # Infinite values: the sum of weights times their gradients is one of products with the results (docs/propagation.md).
        tuple(
            replace(each, special=each.special and not balance and number != 2) for number, each in enumerate(forward.arguments)
        ),
        results=(P(), (tokens,) * 3),
        mesh=forward.mesh,
        options=forward.options,
        shortened=True,
    )


def normalised(random: Random) -> Program:
    """What is divided by a sum over features before a product that contracts them."""
    dtype = draw_dtype(random)
    kind = random.choice(
        ["sum", "magnitudes", "root", "root", "hidden", "hidden_rows", "negated", "zeros", "zeros", "transposed"]
    )
    mesh, along, rows_axis = random.choice([((2, 4), "b", "a"), ((4,), "a", None), ((4, 2), "a", "b")])

    def function(pin: Pin, x: Any, weight: Any, kept: Any) -> Any:
        total = x.sum(-1, keepdims=True)
        if kind == "sum":
            x = x / total
        elif kind == "magnitudes":
            x = x / jnp.abs(x).sum(-1, keepdims=True)
        elif kind == "root":
            x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        elif kind == "negated":
            x = -(x / jnp.abs(x).sum(-1, keepdims=True))
        elif kind == "hidden":
            x = jnp.where(kept, x / jnp.where(kept, x, 0).sum(-1, keepdims=True), 0)
        elif kind == "hidden_rows":
            x = jnp.where(kept[:, :1], x / total, 0)
        elif kind == "zeros":
            x = jnp.maximum(x, 0)
            x = x / x.sum(-1, keepdims=True)
        elif kind == "transposed":
            return (weight.T @ (x / jnp.abs(x).sum(-1, keepdims=True)).T).T
        return x @ weight

    return Program(
        f"normalised {kind}",
        function,
        (
            Argument((8, 16), dtype, P(rows_axis, along)),
            Argument((16, 8), dtype, P(along)),
            Argument((8, 16), jnp.bool_, P(rows_axis, along)),
        ),
        results=P(rows_axis),
        mesh=mesh,
        shortened=True,
    )


def delayed(random: Random) -> Program:
    """What `delay-scaling` delays."""
    return random.choice([cached, cached, cached, normalised])(random)


def rings(random: Random) -> Program:
    """What `ring-attention` makes rings of: forward passes, balanced ones, and backward passes."""
    return random.choice([ring, ring, balanced, gradients])(random)
