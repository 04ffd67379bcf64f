"""What the families share: constraints that can be left out, the parallelisms of a decoder, attention, the loss, the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree

RATE = 1e-3
WEIGHT_SCALE = 0.02
"""The standard deviation of parameters."""

LENGTH = 2048
"""Tokens of a sequence."""

Pins = Mapping[str, P]
"""What the constraints on activations say, by the name of the activation. Empty: only inputs and parameters are annotated."""

Axes = tuple[tuple[str, int], ...]


class BatchSizes(Protocol):
    """Sizes of a batch of tokens; `sequences` are those of each row of the mesh."""

    @property
    def sequences(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


def pinned(x: jax.Array, name: str, pins: Pins) -> jax.Array:
    """`x` below the constraint of that name, or as it is."""
    return jax.lax.with_sharding_constraint(x, pins[name]) if name in pins else x


def grid(devices: int, model: int) -> Axes:
    """A mesh of `devices` with `model` of them along axis "model". Raises ValueError if that does not divide them."""
    if devices % model:
        raise ValueError(f"{devices} devices cannot be arranged in rows of {model}")
    return ("data", devices // model), ("model", model)


def weight(*shape: int, spec: P) -> Argument:
    """A bfloat16 parameter."""
    return Argument(shape, spec, WEIGHT_SCALE, element="bfloat16")


def scale(width: int) -> Argument:
    """The replicated scale of a normalisation."""
    return Argument((width,), P(), 0.02, centre=1.0, element="bfloat16")


def stacked(layer: Tree, layers: int, *, scan: bool) -> Tree:
    """The parameters of all layers: one array with a leading dimension for each of a layer's, or a list."""
    if not scan:
        return [layer] * layers
    return jax.tree.map(lambda a: replace(a, shape=(layers, *a.shape), spec=P(None, *a.spec)), layer)


def through(block: Callable[[jax.Array, Tree], jax.Array], x: jax.Array, layers: Tree) -> jax.Array:
    """`x` after all layers, each computed again in the backward pass; stacked layers under `lax.scan`."""
    again = jax.checkpoint(block)
    if not isinstance(layers, list):
        return jax.lax.scan(lambda x, layer: (again(x, layer), None), x, layers)[0]
    for layer in layers:
        x = again(x, layer)
    return x


def product(x: jax.Array, matrix: jax.Array | Mapping[str, jax.Array]) -> jax.Array:
    """`x @ matrix`; with an adapter, a mapping of "frozen", "down" and "up", the sum of the products by the frozen matrix and by
    the two factors of low rank."""
    if isinstance(matrix, Mapping):
        return x @ matrix["frozen"] + x @ matrix["down"] @ matrix["up"]
    return x @ matrix


@dataclass(frozen=True)
class Style:
    """A parallelism of a decoder on the mesh "data" x "model": how many devices are in a row of tensor parallelism, whether
    parameters are sharded along "data" too, and whether the residual stream is sharded along the sequence."""

    model: int
    fully_sharded: bool
    by_sequence: bool = False

    @property
    def into(self) -> P:
        """The spec of a matrix from the residual stream into a layer."""
        return P("data" if self.fully_sharded else None, "model")

    @property
    def out_of(self) -> P:
        """The spec of a matrix back to the residual stream, and of a table of tokens."""
        return P("model", "data" if self.fully_sharded else None)

    @property
    def pins(self) -> Pins:
        """Batch along "data"; heads, the hidden layer of the MLP and the logits along "model"."""
        wide = P("data", None, "model")
        residual = P("data", "model" if self.by_sequence else None, None)
        return {"residual": residual, "heads": P("data", None, "model", None), "hidden": wide, "logits": wide}


STYLES = {
    "dp": Style(1, fully_sharded=False),
    "fsdp": Style(1, fully_sharded=True),
    "dp_tp": Style(4, fully_sharded=False),
    "sp": Style(4, fully_sharded=False, by_sequence=True),
    "fsdp_tp": Style(4, fully_sharded=True),
}
"""Data parallel, fully sharded, and both with tensor parallelism; `sp` is `dp_tp` with a sequence-parallel residual stream."""


def gated(layer: Tree, x: jax.Array, activation: Callable[[jax.Array], jax.Array], pins: Pins) -> jax.Array:
    """An MLP of matrices "gate", "up" and "down", whose hidden layer is constrained as "hidden"."""
    return pinned(activation(x @ layer["gate"]) * (x @ layer["up"]), "hidden", pins) @ layer["down"]


def causal_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """[batch, length, heads, size] to the same; keys and values may have fewer heads. The softmax is in float32."""
    length = query.shape[1]
    return attention(
        query,
        key,
        value,
        lambda scores: jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9),
        query.shape[-1] ** -0.5,
    )


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, adjusted: Callable[[jax.Array], jax.Array], scale: float = 1.0
) -> jax.Array:
    """The same with any mask, cap or bias: `adjusted` is called on the scores times `scale`, float32 of [batch, heads, queries,
    keys]."""
    shared = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(each, shared, axis=2) if shared > 1 else each for each in (key, value))
    scores = adjusted(jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) * scale)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(value.dtype), value)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all tokens, in float32."""
    likely = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(likely, targets[..., None], axis=-1))


def descended(loss: Callable[..., jax.Array], parameters: Tree, *batch: jax.Array) -> tuple[jax.Array, Tree]:
    """The loss before a step of plain gradient descent, and the parameters after it."""
    value, gradients = jax.value_and_grad(loss)(parameters, *batch)
    return value, jax.tree.map(lambda p, g: p - jnp.asarray(RATE, p.dtype) * g, parameters, gradients)


def training_step(name: str, axes: Axes, loss: Callable[..., jax.Array], weights: Tree, *batch: Argument) -> Program:
    """A step of plain gradient descent by `loss(parameters, *batch)`, which donates the parameters."""
    function = partial(descended, loss)
    return Program(name, axes, function, (weights, *batch), out_specs=(P(), specs(weights)), donated=(0,))


def batch_of(axes: Axes, size: BatchSizes) -> Argument:
    """The tokens of a batch, sharded along "data"."""
    return Argument((size.sequences * dict(axes)["data"], size.length), P("data", None), below=size.vocabulary)


def specs(arguments: Tree) -> Tree:
    """The specs of a tree of arguments."""
    return jax.tree.map(lambda argument: argument.spec, arguments)
