"""A training step of a llama-style decoder in any size, on a mesh of any size: what benchmarks/scale.py measures.

Parameters and the moments of AdamW are float32 and sharded over both axes; activations are bfloat16, and each layer's are
computed again in the backward pass. The layers stand one after the other. Gradients are clipped by their common norm. The loss is
that of the next token, so that one token less than the length is predicted. Nothing is ever run: sizes are those of large models,
and the mesh is an abstract one.

`python -m testdata.scaled OUT.mlir --layers 32 --mesh 16x16` writes the module as text.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree

RATE, FIRST, SECOND, SMALL, DECAY, LONGEST = 1e-3, 0.9, 0.99, 1e-8, 0.1, 1.0


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model and of its batch. `predicted` is the number of tokens of a sequence that have a next one."""

    width: int
    hidden: int
    vocabulary: int
    heads: int
    key_heads: int
    length: int = 4096
    predicted: int = 4095
    batch: int = 512


SIZES = {
    "llama": Sizes(width=4096, hidden=11008, vocabulary=32000, heads=32, key_heads=8),
    "even": Sizes(width=65536, hidden=65536, vocabulary=131072, heads=512, key_heads=256, predicted=4096),
    "uneven": Sizes(width=3840, hidden=11008, vocabulary=32000, heads=30, key_heads=10),
}
"""`llama` are those of a model with 7 billion parameters. Every axis of up to 256 devices divides each size of `even`; 4 divides
neither the heads nor the predicted tokens of `uneven`, and 4,096 none of its other dimensions. (JAX takes no argument that an
axis of its sharding does not divide, so those are divided.)"""


def scaled(layers: int, data: int, model: int, sizes: str = "llama", *, adam: bool = True) -> Program:
    """value_and_grad and the update, by AdamW or by plain gradient descent, on a mesh of `data` x `model`."""
    size = SIZES[sizes]
    parameters = _parameters(size, layers)
    moments = (parameters, parameters) if adam else ()
    batch = Argument((size.batch, size.length), P("data", None), below=size.vocabulary)
    return Program(
        name=f"scaled_{layers}_{sizes}",
        axes=(("data", data), ("model", model)),
        function=partial(train_step, size=size),
        arguments=(parameters, moments, batch),
        out_specs=(P(), *jax.tree.map(lambda argument: argument.spec, (parameters, moments))),
    )


def _parameters(size: Sizes, layers: int) -> Tree:
    inner = size.width // size.heads * size.key_heads
    into, out_of, scale = P("data", "model"), P("model", "data"), Argument((size.width,), P())
    layer = {
        "attention_scale": scale,
        "query": Argument((size.width, size.width), into),
        "key": Argument((size.width, inner), into),
        "value": Argument((size.width, inner), into),
        "attention_out": Argument((size.width, size.width), out_of),
        "mlp_scale": scale,
        "gate": Argument((size.width, size.hidden), into),
        "up": Argument((size.width, size.hidden), into),
        "down": Argument((size.hidden, size.width), out_of),
    }
    return {
        "embedding": Argument((size.vocabulary, size.width), out_of),
        "layers": [layer] * layers,
        "final_scale": scale,
        "output": Argument((size.width, size.vocabulary), into),
    }


def train_step(parameters: Tree, moments: Tree, tokens: jax.Array, *, size: Sizes) -> tuple[jax.Array, Tree, Tree]:
    """The loss before the step; parameters and moments after it."""
    loss, gradients = jax.value_and_grad(partial(_loss, size=size))(parameters, tokens)
    if not moments:
        return loss, jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), moments
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, LONGEST / norm), gradients)
    first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, moments[1], gradients)
    parameters = jax.tree.map(lambda p, m, v: p - RATE * (m / (jnp.sqrt(v) + SMALL) + DECAY * p), parameters, first, second)
    return loss, parameters, (first, second)


def _loss(parameters: Tree, tokens: jax.Array, *, size: Sizes) -> jax.Array:
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), parameters)
    x = half["embedding"][tokens[:, : size.predicted]]
    for layer in half["layers"]:
        x = jax.checkpoint(partial(_block, size=size))(x, layer)
    logits = (normalise(x, half["final_scale"]) @ half["output"]).astype(jnp.float32)
    wanted = jnp.roll(tokens, -1, axis=1)[:, : size.predicted]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1))


def _block(x: jax.Array, layer: Tree, *, size: Sizes) -> jax.Array:
    x = x + _attention(layer, normalise(x, layer["attention_scale"]), size)
    normal = normalise(x, layer["mlp_scale"])
    return x + (jax.nn.silu(normal @ layer["gate"]) * (normal @ layer["up"])) @ layer["down"]


def normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root mean square, in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions on [batch, length, heads, size]."""
    _, length, _, size = x.shape
    frequency = 1.0 / 10000 ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    cos, sin = (wave(angle)[None, :, None, :].astype(x.dtype) for wave in (jnp.cos, jnp.sin))
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _attention(layer: Tree, x: jax.Array, size: Sizes) -> jax.Array:
    batch, length, _ = x.shape
    query = rotated((x @ layer["query"]).reshape(batch, length, size.heads, -1))
    key = rotated((x @ layer["key"]).reshape(batch, length, size.key_heads, -1))
    value = (x @ layer["value"]).reshape(batch, length, size.key_heads, -1)
    key, value = (jnp.repeat(shared, size.heads // size.key_heads, axis=2) for shared in (key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) / jnp.sqrt(query.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
    return mixed.reshape(batch, length, -1) @ layer["attention_out"]


def main() -> None:
    """Writes one program; the file appears whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--mesh", required=True, metavar="DATAxMODEL")
    parser.add_argument("--sizes", choices=list(SIZES), default="llama")
    parser.add_argument("--adam", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    data, model = map(int, options.mesh.split("x"))
    program = scaled(options.layers, data, model, options.sizes, adam=options.adam)
    beside = options.output.with_suffix(".partly")
    beside.write_text(program.export_for("cpu").mlir_module())
    beside.replace(options.output)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # jax reads it when it makes its first device
    main()
