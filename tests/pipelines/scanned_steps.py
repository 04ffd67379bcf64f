"""Training steps whose layers are under one scan: what tests of pipelines cut, or run as one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.pipelines.steps import (
    accumulating,
    added,
    block,
    clipped,
    cross_entropy,
    descend,
    gpt,
    in_stacks,
    llama,
    llama_loss,
    marked_scan_loss,
    one_scan_loss,
    parts,
)

Tree = Any


def stacks(layers: int = 4) -> tuple[Tree, Tree]:
    """Parameters of a transformer in stacks, and tokens."""
    params, tokens = gpt(layers)
    return in_stacks(params), tokens


def cast(params: Tree, tokens: Any) -> Tree:
    """A step whose parameters are cast before the loop."""
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    gradients = added(lambda p, part: one_scan_loss(p, part, 1), low, tokens, jax.tree.map(jnp.zeros_like, low))
    return descend(params, jax.tree.map(lambda g: g.astype(jnp.float32), gradients))


def reversed_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """A scan over layers from the last one to the first one, which also returns a number for each layer."""
    layer = lambda x, p: (block(p, x), (x**2).mean())  # noqa: E731
    x, norms = jax.lax.scan(layer, params["embed"][tokens], params["layers"], reverse=True)
    return cross_entropy(x @ params["embed"].T, tokens) + 0.01 * (norms * jnp.arange(norms.size)).sum()


def balanced_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """A scan that carries a loss beside the activations, and reads one kernel in all layers."""

    def layer(carry: tuple[Any, Any], p: Tree) -> tuple[tuple[Any, Any], None]:
        x, balance = carry
        x = block(p, x) + x @ params["shared"]
        return (x, balance + jnp.abs(x).mean()), None

    start = (params["embed"][tokens], jnp.float32(0))
    (x, balance), _ = jax.lax.scan(layer, start, params["layers"])
    return cross_entropy(x @ params["embed"].T, tokens) + 0.01 * balance


def dropped(params: Tree, tokens: Any) -> Tree:
    """A step with dropout, whose key the loop of microbatches carries; each layer folds in its number."""

    def loss(params: Tree, part: Any, key: Any) -> Any:
        def layer(x: Any, given: tuple[Any, Tree]) -> tuple[Any, None]:
            number, p = given
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.75, x.shape)
            return jnp.where(kept, block(p, x), x), None

        numbered = jnp.arange(len(params["layers"]["up"])), params["layers"]
        x, _ = jax.lax.scan(layer, params["embed"][part], numbered)
        return cross_entropy(x @ params["embed"].T, part)

    def add(carry: tuple[Tree, Any], part: Any) -> tuple[tuple[Tree, Any], Any]:
        total, key = carry
        key, own = jax.random.split(key)
        value, gradients = jax.value_and_grad(loss)(params, part, own)
        return (jax.tree.map(jnp.add, total, gradients), key), value

    start = jax.tree.map(jnp.zeros_like, params), jax.random.key(3)
    (gradients, _), values = jax.lax.scan(add, start, parts(tokens))
    return descend(params, gradients), values


def by_adam(params: Tree, tokens: Any) -> Tree:
    """A step of Adam with clipping and decay, from moments of zero."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    def update(params: Tree, gradients: Tree) -> Tree:
        updates, moments = optimizer.update(gradients, optimizer.init(params), params)
        return optax.apply_updates(params, updates), moments

    return accumulating(one_scan_loss, 1, update=update)(params, tokens)


def gradients_of(params: Tree, tokens: Any) -> Tree:
    """A step that returns gradients, which another function reads."""
    return added(lambda p, part: one_scan_loss(p, part, 1), params, tokens, jax.tree.map(jnp.zeros_like, params))


SHARED = ({**stacks()[0], "shared": gpt()[0]["layers"][0]["out"]}, stacks()[1])

STEPS: dict[str, tuple[Callable[..., Any], Tree, int]] = {
    "gpt": (accumulating(one_scan_loss, 1, update=clipped), stacks(), 4),
    "marked": (accumulating(marked_scan_loss, 1), stacks(), 2),
    "llama": (accumulating(llama_loss, 1), llama(), 2),
    "adam": (by_adam, stacks(), 2),
    "gradients alone": (gradients_of, stacks(), 2),
    "cast before the loop": (cast, stacks(), 2),
    "from the last layer": (accumulating(reversed_loss, 1), stacks(), 2),
    "more carried values": (accumulating(balanced_loss, 1), SHARED, 2),
    "five layers": (accumulating(one_scan_loss, 1, update=clipped), stacks(5), 3),
    "five layers, marked": (accumulating(marked_scan_loss, 1), stacks(5), 2),
    "five layers, adam": (by_adam, stacks(5), 2),
    "five layers of a llama": (accumulating(llama_loss, 1), llama(5), 3),
    "five layers from the last one": (accumulating(reversed_loss, 1), stacks(5), 2),
    "five layers with dropout": (dropped, stacks(5), 2),
}
"""Steps with one scan over layers, their arguments, and a number of stages."""
