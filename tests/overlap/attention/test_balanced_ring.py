"""Rings of causal attention, balanced: numbers of one device, half of the products, and what has no such ring."""

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
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.overlap.attention.attention_programs import (
    VARIANTS,
    Attention,
    causal,
    check_numbers,
    counted,
    drawn,
    gathered,
    hand_written,
    multiplied,
    sharded,
)
from tests.overlap.attention.gradient_programs import distance, scattered, training
from tests.overlap.transformer import Transformer
from tests.overlap.transformer import check as check_layers

CAUSAL = [
    "library_causal",
    "causal",
    "wide",
    "masked_rows",
    "masked_rows_guarded",
    "masked_rows_zeroed",
    "masked_rows_zeroed_whole",
    "window",
    "thinned",
    "rotated",
]


def check(attention: Attention, jitted: Any, arguments: list[jax.Array], count: int) -> None:
    module = gathered(jitted, *arguments)
    before = multiplied(module)
    pipeline.run((RingAttention(balance=True),), module)
    assert multiplied(module) * 4 * count == before * (2 * count + 1)
    check_numbers(module, attention, arguments)


def check_gradients(
    attention: Attention, mesh: jax.sharding.Mesh, axis: str, count: int, again: bool, arguments: list[jax.Array]
) -> None:
    """Seven products, of which two are those of the forward pass, and gradients about as near to those of float32 as one
    device's."""
    forward = multiplied(gathered(sharded(attention, mesh, axis), *arguments))
    module = scattered(attention, mesh, axis, again, arguments)
    pipeline.run((RingAttention(balance=True),), module)
    assert multiplied(module) * 4 * count == 7 * forward // 2 * (2 * count + 1)
    step = jax.jit(training(attention, again=False))
    found, alike = (jax.tree.leaves(run(*arguments)) for run in (meshbridge.compile(module), step))
    exact = jax.tree.leaves(step(*(each.astype(jnp.float32) for each in arguments)))
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in alike]
    np.testing.assert_allclose(found[0], exact[0], rtol=float(jnp.finfo(arguments[0].dtype).eps) / 4 + 1e-5)
    for each, one, wanted in zip(found[1:], alike[1:], exact[1:], strict=True):
        assert distance(each, wanted) <= 2 * distance(one, wanted) + 1e-5 * distance(wanted, 0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, jnp.float32) for name in CAUSAL] + [(name, jnp.bfloat16) for name in ("library_causal", "wide")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_variants(name: str, dtype: Any, mesh: jax.sharding.Mesh) -> None:
    check(VARIANTS[name], sharded(VARIANTS[name], mesh, "model"), drawn(dtype, key_heads=2), 4)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("name", ["causal", "window"])
def test_groups(name: str, count: int) -> None:
    mesh = jax.make_mesh((count, 8 // count), ("sequence", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    check(VARIANTS[name], sharded(VARIANTS[name], mesh, "sequence"), drawn(jnp.float16), count)


def test_an_odd_number_of_devices() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:3]).reshape(3, 1), ("sequence", "rest"))
    check(VARIANTS["causal"], sharded(VARIANTS["causal"], mesh, "sequence"), drawn(length=48), 3)


def unmasked_rows(scores: jax.Array) -> jax.Array:
    """Rows that hide all keys give all of them a weight."""
    return causal(scores, 3, -1e9)


def padded(scores: jax.Array) -> jax.Array:
    """So do those whose keys are hidden by what is added."""
    return causal(scores + jnp.where(jnp.arange(scores.shape[-1]) < 9, -1e9, 0), fill=-1e9)


def later(scores: jax.Array) -> jax.Array:
    """One key of the future."""
    return causal(scores, -1)


def unnumbered(scores: jax.Array) -> jax.Array:
    """Positions that nothing is known of."""
    length = scores.shape[-1]
    order = jnp.sort(jnp.arange(length) * 7 % length)
    return jnp.where(order[:, None] >= order, scores, -jnp.inf)


@pytest.mark.parametrize("score", [lambda scores: scores, unmasked_rows, padded, later, unnumbered, partial(causal, fill=-1e4)])
def test_rings_that_stay_as_they_are(score: Callable[[jax.Array], jax.Array], mesh: jax.sharding.Mesh) -> None:
    """They are right, and have all products."""
    attention = hand_written(score)
    jitted, arguments = sharded(attention, mesh, "model"), drawn()
    module = gathered(jitted, *arguments)
    before = multiplied(module)
    pipeline.run((RingAttention(balance=True),), module)
    assert counted(module, "mesh.shift") == 6
    assert multiplied(module) == before


@pytest.mark.parametrize(("score", "halved"), [(causal, True), (lambda scores: scores, False)], ids=["causal", "unmasked"])
def test_a_shorter_step_chooses(score: Callable[[jax.Array], jax.Array], halved: bool, mesh: jax.sharding.Mesh) -> None:
    """Of long sequences products count more than the permutes by which the halves are exchanged."""
    structs = [
        jax.ShapeDtypeStruct((2, 16384, heads, 64), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("data", "model")))
        for heads in (4, 2, 2)
    ]
    module = gathered(sharded(hand_written(score), mesh, "model"), *structs)
    before = multiplied(module)
    pipeline.run((RingAttention(CompileTarget.of("v5e:2x4")),), module)
    assert multiplied(module) == (before * 9 // 16 if halved else before)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_gradients(dtype: Any, again: bool, mesh: jax.sharding.Mesh) -> None:
    check_gradients(VARIANTS["library_causal"], mesh, "model", 4, again, drawn(dtype, key_heads=2))


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("name", ["causal", "wide", "window"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_gradients_of_variants(name: str, dtype: Any, again: bool, mesh: jax.sharding.Mesh) -> None:
    check_gradients(VARIANTS[name], mesh, "model", 4, again, drawn(dtype, key_heads=2))


@pytest.mark.parametrize("count", [2, 8])
def test_gradients_in_groups(count: int) -> None:
    mesh = jax.make_mesh((count, 8 // count), ("sequence", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    check_gradients(VARIANTS["library_causal"], mesh, "sequence", count, True, drawn())


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "unrolled"])
def test_layers_that_are_computed_again(scanned: bool) -> None:
    check_layers(Transformer(VARIANTS["library_causal"], scanned=scanned), 4, jnp.bfloat16, balance=True)


def by_blocks(query: jax.Array, key: jax.Array, value: jax.Array, scale: jax.Array) -> jax.Array:
    """Of blocks of queries, one on each device, with a number for each, which is an argument or that of the block."""
    blocks, length = query.shape[:2]
    key, value = (each.reshape(-1, each.shape[-1]) for each in (key, value))
    scores = jnp.einsum("nqd,kd->nqk", query, key) * scale[:, None, None]
    position = jnp.arange(blocks)[:, None] * length + jnp.arange(length)
    weights = jax.nn.softmax(jnp.where(position[:, :, None] >= jnp.arange(blocks * length), scores, -jnp.inf))
    return jnp.einsum("nqk,kd->nqd", weights, value)


def by_numbered_blocks(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return by_blocks(query, key, value, 1.0 + jnp.arange(len(query), dtype=query.dtype))


@pytest.mark.parametrize("attention", [by_blocks, by_numbered_blocks])
def test_what_devices_have_for_all_queries(attention: Attention) -> None:
    """It is not that of another device, whose queries would be sent to this one."""
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    blocks, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("sequence",), ()))

    def function(query: jax.Array, key: jax.Array, value: jax.Array, *rest: jax.Array) -> jax.Array:
        key, value = (jax.lax.with_sharding_constraint(each, whole) for each in (key, value))
        return jax.lax.with_sharding_constraint(attention(query, key, value, *rest), blocks)

    keys = jax.random.split(jax.random.key(0), 3)
    arguments = [jax.random.normal(key, (4, 16, 8)) for key in keys] + ([jnp.arange(1.0, 5.0)] if attention is by_blocks else [])
    jitted = jax.jit(function, in_shardings=blocks, out_shardings=blocks)
    module = gathered(jitted, *arguments)
    before = multiplied(module)
    pipeline.run((RingAttention(balance=True),), module)
    assert multiplied(module) == before
    found = np.asarray(jax.tree.leaves(meshbridge.compile(module)(*arguments))[0])
    np.testing.assert_allclose(found, jax.jit(attention)(*arguments), rtol=0, atol=1e-5)
