"""Backward passes of attention as rings: gradients of one device, as many bytes as before, and less memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.overlap.attention.attention_programs import (
    VARIANTS,
    Attention,
    causal,
    counted,
    drawn,
    gathered,
    hand_written,
    sharded,
)
from tests.overlap.attention.gradient_programs import distance, scattered, training
from tests.work import lines_run

P = PartitionSpec


def check(module: ir.Module, attention: Attention, arguments: list[jax.Array], *, saves: bool = True) -> None:
    """Less memory, a loss that rounds once, and gradients about as near to those of float32 as one device's. As many bytes, or
    those of one more gather of keys and values, where the forward pass held them for the backward pass."""
    held = memory(main_function(module)).temporaries
    bytes_, kept = communication(module).wire_bytes, counted(module, "mesh.all_gather") == 2
    gathered_bytes = sum(each.wire_bytes for each in communication(module).collectives if each.kind == "all_gather")
    pipeline.run((RingAttention(),), module)
    assert communication(module).wire_bytes == pytest.approx(bytes_ + kept * gathered_bytes)
    assert memory(main_function(module)).temporaries < held or not saves
    step = jax.jit(training(attention, again=False))
    found, alike = (jax.tree.leaves(run(*arguments)) for run in (meshbridge.compile(module), step))
    exact = jax.tree.leaves(step(*(each.astype(jnp.float32) for each in arguments)))
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in alike]
    np.testing.assert_allclose(found[0], exact[0], rtol=float(jnp.finfo(arguments[0].dtype).eps) / 4 + 1e-5)
    for each, plain, wanted in zip(found[1:], alike[1:], exact[1:], strict=True):
        assert distance(each, wanted) <= 2 * distance(plain, wanted) + 1e-5 * distance(wanted, 0)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("name", ["library_causal", "causal", "sloped"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_variants(name: str, dtype: Any, again: bool, mesh: jax.sharding.Mesh) -> None:
    """Keys and values travel with their gradients."""
    arguments = drawn(dtype, key_heads=2)
    module = scattered(VARIANTS[name], mesh, "model", again, arguments)
    check(module, VARIANTS[name], arguments)
    assert counted(module, "mesh.reduce_scatter") == 0
    assert (counted(module, "mesh.all_gather"), counted(module, "mesh.shift")) == (0, 18)


def dropped(weights: jax.Array) -> jax.Array:
    """Without a random fifth of the weights."""
    kept = jax.random.bernoulli(jax.random.key(7), 0.8, weights.shape)
    return jnp.where(kept, weights / 0.8, 0)


def multiplied(weights: jax.Array) -> jax.Array:
    """The same, as a product."""
    return weights * (jax.random.bernoulli(jax.random.key(7), 0.8, weights.shape).astype(weights.dtype) / 0.8)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("thin", [dropped, multiplied])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_dropout(dtype: Any, thin: Callable[[jax.Array], jax.Array], again: bool, mesh: jax.sharding.Mesh) -> None:
    attention = hand_written(causal, lambda scores: thin(jax.nn.softmax(scores)))
    arguments = drawn(dtype, key_heads=2)
    module = scattered(attention, mesh, "model", again, arguments)
    check(module, attention, arguments, saves=False)  # random bits are larger than what is saved
    assert counted(module, "mesh.shift") == 18


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if not name.startswith(("rotated", "late", "masked_rows", "logarithmic"))]
)
def test_all_variants(name: str, again: bool, mesh: jax.sharding.Mesh) -> None:
    arguments = drawn(key_heads=2)
    module = scattered(VARIANTS[name], mesh, "model", again, arguments)
    check(module, VARIANTS[name], arguments)


@pytest.mark.parametrize("count", [2, 8])
def test_groups(count: int) -> None:
    mesh = jax.make_mesh((count, 8 // count), ("sequence", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    arguments = drawn()
    module = scattered(VARIANTS["library_causal"], mesh, "sequence", True, arguments)
    check(module, VARIANTS["library_causal"], arguments)
    assert counted(module, "mesh.shift") == 6 * (count - 1)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize(
    ("spec", "after"),
    [(P("data"), "mesh.all_gather"), (P("data", None, "model"), "mesh.all_to_all")],
    ids=["everywhere", "heads"],
)
def test_gradients_that_are_wanted_otherwise(spec: PartitionSpec, after: str, again: bool, mesh: jax.sharding.Mesh) -> None:
    """All-reduced, or scattered along heads: what the ring gives for the own keys is resharded."""
    arguments = drawn()
    tokens, wanted = (NamedSharding(mesh, each) for each in (P("data", "model"), spec))
    step = training(sharded(VARIANTS["causal"], mesh, "model"), again)
    module = gathered(jax.jit(step, in_shardings=(tokens,) * 3, out_shardings=(None, (tokens, wanted, wanted))), *arguments)
    pipeline.run((OptimizeCollectives(0, target=CompileTarget.of("h100")),), module)
    assert counted(module, "mesh.all_reduce") == (3 if after == "mesh.all_gather" else 1)
    check(module, VARIANTS["causal"], arguments)
    assert (counted(module, after), counted(module, "mesh.shift")) == (2, 18)
    assert counted(module, "mesh.reduce_scatter") == 0


def test_largest_scores_with_a_gradient(mesh: jax.sharding.Mesh) -> None:
    """Which score is the largest cannot be asked of scores that round differently: the backward pass stays as it is."""
    arguments = drawn()
    for again in (False, True):
        module = scattered(VARIANTS["logarithmic"], mesh, "model", again, arguments)
        pipeline.run((RingAttention(),), module)
        assert counted(module, "mesh.reduce_scatter") == 2
        right = jax.tree.leaves(jax.jit(training(VARIANTS["logarithmic"], again=False))(*arguments))
        for each, wanted in zip(jax.tree.leaves(meshbridge.compile(module)(*arguments)), right, strict=True):
            np.testing.assert_allclose(each, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("mixing", ["bhqk,hg->bgqk", "bhqk,h->bqk"], ids=["talking", "averaged"])
def test_heads_that_learn_how_to_mix(mixing: str, mesh: jax.sharding.Mesh) -> None:
    """The gradient of the mixing is a product of weights, too, and of no value that has queries."""
    tokens, whole = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P())
    mixes = jnp.eye(4) + 0.1 if "g" in mixing else jnp.linspace(0.5, 1.5, 4)

    def loss(query: jax.Array, key: jax.Array, value: jax.Array, mix: jax.Array) -> jax.Array:
        weights = jnp.einsum(mixing, jax.nn.softmax(causal(jnp.einsum("bqhd,bkhd->bhqk", query, key))), mix)
        return (jnp.einsum("bhqk,bkhd->bqhd" if weights.ndim == 4 else "bqk,bkhd->bqhd", weights, value) ** 2).sum()

    step, arguments = jax.grad(loss, (0, 1, 2, 3)), [*drawn(), mixes]
    jitted = jax.jit(step, in_shardings=(tokens,) * 3 + (whole,), out_shardings=(tokens,) * 3 + (whole,))
    module = gathered(jitted, *arguments)
    pipeline.run((RingAttention(),), module)
    assert counted(module, "mesh.shift")
    for found, right in zip(meshbridge.compile(module)(*arguments), step(*arguments), strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_many_layers_take_work_in_proportion(mesh: jax.sharding.Mesh) -> None:
    """Layers whose weights are scattered, of which each could stand after all before it, and none is a ring."""

    def deep(layers: int) -> ir.Module:
        def loss(weights: list[jax.Array], tokens: jax.Array) -> jax.Array:
            for weight in weights:
                query = jnp.einsum("bqhd,hde->bqhe", tokens, weight)
                tokens = tokens + VARIANTS["causal"](query, tokens, tokens)
            return (tokens**2).sum()

        tokens, (weight, rows) = drawn()[0], (P(None, "data"), P("data"))
        split = [NamedSharding(mesh, weight)] * layers, NamedSharding(mesh, rows)
        step = jax.jit(jax.value_and_grad(loss), in_shardings=split, out_shardings=(None, split[0]))
        heads, width = tokens.shape[-2:]
        return gathered(step, [jnp.ones((heads, width, width))] * layers, tokens)

    many, few = (lines_run(partial(pipeline.run, (RingAttention(),), deep(layers))) for layers in (24, 4))
    assert many < 9 * few
