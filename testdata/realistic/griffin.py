"""A training step of a Griffin: two blocks with a real-gated linear recurrent unit (RG-LRU) for each with local attention of one
shared key, the recurrence an associative scan along the sequence; remat in each three blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, Style, pinned, scale, weight
from testdata.realistic.mamba2 import causal_convolution
from testdata.scaled import normalise, rotated


@dataclass(frozen=True)
class Size:
    """The sizes of Griffin with a billion parameters, but for the blocks, three for each of `triples`, and the window, half a
    sequence. `taps` are those of the convolution, `power` scales the logarithm of the decay; `sequences` are those of each row of
    the mesh."""

    width: int = 2048
    hidden: int = 6144
    heads: int = 8
    taps: int = 4
    power: float = 8.0
    window: int = LENGTH // 2
    vocabulary: int = 32768
    triples: int = 2
    sequences: int = 4
    length: int = LENGTH


SIZE = Size()


def griffin(style: str, devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent in one of the parallelisms of `layers.STYLES`, channels of the recurrence along
    "model"; triples of blocks under `lax.scan`."""
    chosen = common.STYLES[style]
    axes = common.grid(devices, chosen.model)
    weights = _parameters(chosen, size)
    batch = common.batch_of(axes, size)
    pins = {**chosen.pins, "shared": P("data", None, None, None)} if annotated else {}
    return common.training_step(
        f"griffin{3 * size.triples}_scan_{style}", axes, partial(_loss, size=size, pins=pins), weights, batch, batch
    )


def _parameters(style: Style, size: Size) -> Tree:
    into, out_of, width = style.into, style.out_of, size.width
    head = width // size.heads
    mlp = {
        "mlp_scale": scale(width),
        "gate": weight(width, size.hidden, spec=into),
        "up": weight(width, size.hidden, spec=into),
        "down": weight(size.hidden, width, spec=out_of),
    }
    recurrent = {
        "scale": scale(width),
        "beside": weight(width, width, spec=into),
        "into": weight(width, width, spec=into),
        "taps": Argument((size.taps, 1, width), P(None, None, "model"), 0.5, element="bfloat16"),
        "recurrence_gate": weight(size.heads, head, head, spec=P("model", None, None)),
        "input_gate": weight(size.heads, head, head, spec=P("model", None, None)),
        "decay": Argument((width,), P("model"), 0.5, element="float32"),
        "out": weight(width, width, spec=out_of),
        **mlp,
    }
    attention = {
        "scale": scale(width),
        "query": weight(width, width, spec=into),
        "key": weight(width, head, spec=P(into[0], None)),
        "value": weight(width, head, spec=P(into[0], None)),
        "attention_out": weight(width, width, spec=out_of),
        **mlp,
    }
    return {
        "embedding": weight(size.vocabulary, width, spec=out_of),
        "triples": common.stacked({"first": recurrent, "second": recurrent, "third": attention}, size.triples, scan=True),
        "final_scale": scale(width),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    def triple(x: jax.Array, blocks: Tree) -> jax.Array:
        for name, mixed in (("first", _recurrent), ("second", _recurrent), ("third", _attention)):
            block = blocks[name]
            x = pinned(x + mixed(block, normalise(x, block["scale"]), size, pins), "residual", pins)
            x = pinned(x + common.gated(block, normalise(x, block["mlp_scale"]), jax.nn.gelu, pins), "residual", pins)
        return x

    x = pinned(parameters["embedding"][tokens], "residual", pins)
    x = common.through(triple, x, parameters["triples"])
    logits = normalise(x, parameters["final_scale"]) @ parameters["embedding"].T
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _recurrent(block: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    beside = jax.nn.gelu(pinned(x @ block["beside"], "hidden", pins))
    given = causal_convolution(pinned(x @ block["into"], "hidden", pins), block["taps"])
    by_head = given.reshape(*given.shape[:2], size.heads, -1)
    open_, kept = (
        jax.nn.sigmoid(jnp.einsum("blhi,hij->blhj", by_head, block[name]).astype(jnp.float32)).reshape(given.shape)
        for name in ("input_gate", "recurrence_gate")
    )
    logs = -size.power * kept * jax.nn.softplus(block["decay"])
    added = jnp.sqrt(1 - jnp.exp(2 * logs)) * open_ * given.astype(jnp.float32)
    found = pinned(_recurrence(jnp.exp(logs), added).astype(x.dtype), "hidden", pins)
    return (found * beside) @ block["out"]


def _recurrence(decay: jax.Array, added: jax.Array) -> jax.Array:
    """`state = decay * state + added` along the second dimension: the state after each."""

    def combined(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(combined, (decay, added), axis=1)[1]


def _attention(block: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """Of each token to the `window` last ones, itself among them."""
    query, key, value = (
        pinned((x @ block[name]).reshape(*x.shape[:2], heads, -1), pin, pins)
        for name, heads, pin in (("query", size.heads, "heads"), ("key", 1, "shared"), ("value", 1, "shared"))
    )

    def masked(scores: jax.Array) -> jax.Array:
        before = jnp.arange(size.length)[:, None] - jnp.arange(size.length)[None, :]
        return jnp.where((before >= 0) & (before < size.window), scores, -1e9)

    mixed = common.attention(rotated(query), rotated(key), value, masked, query.shape[-1] ** -0.5)
    return pinned(mixed, "heads", pins).reshape(x.shape) @ block["attention_out"]
