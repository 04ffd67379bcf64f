"""Training steps with two scans over layers, an encoder's and a decoder's, or two towers': what tests of pipelines cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshbridge
from tests.pipelines.steps import (
    LENGTH,
    MICROBATCHES,
    VOCABULARY,
    WIDTH,
    accumulating,
    block,
    clipped,
    cross_entropy,
    descend,
    gpt,
    in_stacks,
    normal,
)

Tree = Any


def same(tree: Tree) -> Tree:
    """No boundary."""
    return tree


def marker(name: str) -> Callable[[Tree], Tree]:
    """A boundary of that name; none for no name."""
    return meshbridge.stage(name) if name else same


def decoder_block(p: Tree, x: Any, memory: Any) -> Any:
    """A layer of a decoder: causal attention, attention to `memory`, and an MLP."""
    x = block({**p, "up": p["up"] * 0}, x)
    return block({**p, "qkv": p["cross"]}, x, memory)


def translator(encoder: int = 4, decoder: int = 4) -> tuple[Tree, Tree]:
    """Parameters and tokens of an encoder and a decoder in stacks, which share one table of embeddings."""
    stacks = in_stacks(gpt(encoder + decoder)[0])
    first = {name: stack[:encoder] for name, stack in stacks["layers"].items()}
    second = {name: stack[encoder:] for name, stack in stacks["layers"].items()}
    second["cross"] = normal(70, decoder, WIDTH, 3 * WIDTH)
    params = {"embed": stacks["embed"], "encoder": first, "decoder": second, "norm": np.ones(WIDTH, np.float32)}
    tokens = gpt()[1]
    return params, (np.random.default_rng(6).integers(0, VOCABULARY, (tokens.shape[0], 6)).astype(np.int32), tokens)


def translator_loss(
    params: Tree, batch: Tree, stages: int, *, marks: tuple[str, str, str] = ("", "", ""), key: Any = None
) -> Any:
    """The cross entropy of a decoder's next token, whose layers attend to what the encoder returns. `marks` are boundaries in the
    encoder, between the scans, and in the decoder. With a key, half of each layer's output is dropped, by one stack of keys, of
    which both scans read one for each layer; without, both read the numbers of layers."""
    source, target = batch
    inside, between, later = map(marker, marks)

    def dropped(x: Any, given: Any, tower: int) -> Any:
        if key is None:
            return x + 0.1 * given
        return jnp.where(jax.random.bernoulli(jax.random.fold_in(given, tower), 0.5, x.shape), 2 * x, 0)

    def encode(x: Any, p: Tree) -> tuple[Any, None]:
        given, kernels = p
        return dropped(block(kernels, inside(x)), given, 0), None

    def decode(x: Any, p: Tree) -> tuple[Any, None]:
        given, kernels = p
        return dropped(decoder_block(kernels, later(x), memory), given, 1), None

    def numbered(stacks: Tree) -> tuple[Any, Tree]:
        layers = len(stacks["up"])
        return (jnp.arange(layers) if key is None else jax.random.split(key, layers)), stacks

    x, _ = jax.lax.scan(encode, params["embed"][source], numbered(params["encoder"]))
    memory = between(x * params["norm"])
    y, _ = jax.lax.scan(decode, params["embed"][target], numbered(params["decoder"]))
    return cross_entropy(y @ params["embed"].T, target)


def marked_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The same with boundaries in both scans, and one between."""
    return translator_loss(params, batch, stages, marks=("encoder", "memory", "decoder"))


def half_marked_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The same with a boundary between the scans, and boundaries in the decoder."""
    return translator_loss(params, batch, stages, marks=("", "memory", "decoder"))


def towers(layers: int = 2) -> tuple[Tree, Tree]:
    """Parameters of two stacks of layers, each after a projection, and a batch of pairs."""
    params = {
        name: {
            "in": normal(80 + number, WIDTH, WIDTH),
            "layers": in_stacks(gpt(layers)[0])["layers"],
            "out": normal(82, WIDTH, 4),
        }
        for number, name in enumerate(("image", "text"))
    }
    return params, (normal(84, 8, LENGTH, WIDTH), normal(85, 8, LENGTH, WIDTH))


def towers_loss(params: Tree, batch: Tree, stages: int) -> Any:
    """The contrast between pairs and others, by two towers neither of which reads the other one."""

    def tower(p: Tree, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, own: (block(own, x), None), x @ p["in"], p["layers"])
        return x.mean(1) @ p["out"]

    left, right = (tower(params[name], x) for name, x in zip(("image", "text"), batch, strict=True))
    logits = left @ right.T
    return -jnp.diag(jax.nn.log_softmax(logits)).mean()


def dropped(params: Tree, batch: Tree) -> tuple[Tree, Any]:
    """A step with dropout in both scans, by a key that the loop of microbatches carries and splits."""
    batch, seed = batch

    def add(carry: tuple[Tree, Any], microbatch: Tree) -> tuple[tuple[Tree, Any], Any]:
        total, key = carry
        key, own = jax.random.split(key)
        value, gradients = jax.value_and_grad(translator_loss)(params, microbatch, 1, key=own)
        return (jax.tree.map(jnp.add, total, gradients), key), value

    microbatches = jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, *leaf.shape[1:]), batch)
    (gradients, key), values = jax.lax.scan(add, (jax.tree.map(jnp.zeros_like, params), jax.random.key(seed)), microbatches)
    return descend(params, gradients), (values, jax.random.key_data(key))


def scaled(params: Tree, batch: Tree) -> tuple[Tree, Any]:
    """A step with a scaled loss: parameters stay as they are, and the scale halves, if a gradient is not finite."""
    weights, scale = params

    def update(_: Tree, gradients: Tree) -> Tree:
        unscaled = jax.tree.map(lambda g: g / scale, gradients)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(unscaled)]))
        updated = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), weights, unscaled)
        return updated, jnp.where(finite, scale, scale / 2)

    return accumulating(lambda *given: translator_loss(*given) * scale, 1, update=update)(weights, batch)


STEPS: dict[str, tuple[Callable[..., Any], Tree, int]] = {
    "clipping": (accumulating(translator_loss, 1, update=clipped), translator(), 4),
    "a stage of both": (accumulating(translator_loss, 1), translator(1, 3), 2),
    "marked": (accumulating(marked_loss, 1), translator(2, 2), 4),
    "one marked": (accumulating(half_marked_loss, 1), translator(2, 2), 3),
    "towers": (accumulating(towers_loss, 1), towers(), 4),
    "dropout": (dropped, (translator(2, 2)[0], (translator()[1], 3)), 4),
    "loss scaling": (scaled, ((translator(2, 2)[0], np.float32(1024)), translator()[1]), 2),
}
"""By name, a step, its arguments, and its number of stages."""
