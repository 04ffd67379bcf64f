"""Attention whose keys and values travel around a ring: numbers of one device, bytes of gathers, and what stays gathered."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.overlap.attention.attention_programs import (
    VARIANTS,
    Attention,
    check_numbers,
    counted,
    drawn,
    gathered,
    hand_written,
    library,
    sharded,
)
from tests.work import lines_run

P = PartitionSpec


def check(attention: Attention, jitted: Any, arguments: list[jax.Array], steps: int) -> None:
    """Keys and values travel in so many steps, as many bytes as gathers send, and the result is that of one device."""
    module = gathered(jitted, *arguments)
    before = communication(module).wire_bytes
    pipeline.run((RingAttention(),), module)
    assert (counted(module, "mesh.all_gather"), counted(module, "mesh.shift")) == (0, 2 * steps)
    assert communication(module).wire_bytes == pytest.approx(before)
    check_numbers(module, attention, arguments)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_variants(name: str, dtype: Any, mesh: jax.sharding.Mesh) -> None:
    attention = VARIANTS[name]
    check(attention, sharded(attention, mesh, "model"), drawn(dtype, key_heads=2), 3)


@pytest.mark.parametrize("name", ["masked_rows", "masked_rows_zeroed", "masked_rows_zeroed_whole"])
def test_keys_that_are_not_finite(name: str, mesh: jax.sharding.Mesh) -> None:
    """NaN and infinities of keys and values reach the queries that they reach on one device, and no others."""
    query, key, value = drawn(key_heads=2)
    jitted = sharded(VARIANTS[name], mesh, "model")
    module = gathered(jitted, query, key, value)
    pipeline.run((RingAttention(),), module)
    assert counted(module, "mesh.shift") == 6
    ring, one = meshbridge.compile(module), jax.jit(VARIANTS[name])
    for number in (jnp.nan, jnp.inf, -jnp.inf):
        for token in (3, 30, 63):
            keys, values = (each.at[0, token, 0, 0].set(number) for each in (key, value))
            for arguments in ((query, keys, value), (query, key, values)):
                np.testing.assert_allclose(ring(*arguments)[0], one(*arguments), atol=2e-5)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("name", ["window", "late_keys"])
def test_groups(name: str, count: int) -> None:
    mesh = jax.make_mesh((count, 8 // count), ("sequence", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    check(VARIANTS[name], sharded(VARIANTS[name], mesh, "sequence"), drawn(jnp.float16), count - 1)


def with_bias(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(query, key, value, bias=bias, mask=mask)


@pytest.mark.parametrize("rows", [None, "model"])
def test_masks_that_are_arguments(rows: str | None, mesh: jax.sharding.Mesh) -> None:
    bias = jax.random.normal(jax.random.key(1), (1, 4, 64, 64))
    mask = jax.random.bernoulli(jax.random.key(2), 0.7, (2, 1, 64, 64))
    spec = P(None, None, rows, None)
    check(with_bias, sharded(with_bias, mesh, "model", spec, spec), [*drawn(), bias, mask], 3)


def test_layers_of_a_scan(mesh: jax.sharding.Mesh) -> None:
    """A ring within a loop."""
    tokens, whole = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P("data"))

    def layers(x: jax.Array, weights: jax.Array, *, place: Any = lambda x, _: x) -> jax.Array:
        def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            query, key, value = (jnp.einsum("btd,dhk->bthk", x, each) for each in weight)
            key, value = place(key, whole), place(value, whole)
            mixed = VARIANTS["causal"](place(query, tokens), key, value)
            return x + place(mixed, tokens).reshape(x.shape), None

        return jax.lax.scan(layer, place(x, tokens), weights)[0]

    x = jax.random.normal(jax.random.key(0), (2, 64, 32))
    weights = 0.1 * jax.random.normal(jax.random.key(1), (3, 3, 32, 4, 8))
    pin = jax.lax.with_sharding_constraint
    jitted = jax.jit(
        lambda x, weights: layers(x, weights, place=pin),
        in_shardings=(tokens, NamedSharding(mesh, P())),
        out_shardings=tokens,
    )
    check(layers, jitted, [x, weights], 3)


def stays(jitted: Any, *arguments: Any) -> None:
    module = gathered(jitted, *arguments)
    text = str(module)
    pipeline.run((RingAttention(),), module)
    assert "mesh.all_gather" in text
    assert str(module) == text


def test_scores_that_something_else_reads(mesh: jax.sharding.Mesh) -> None:
    """Values do not travel alone: all scores would be held."""
    for score in (jax.nn.log_softmax, lambda scores: scores - scores.max()):
        stays(sharded(hand_written(score, jnp.exp), mesh, "model"), *drawn())


def test_results_that_all_devices_compute_stay_alike(mesh: jax.sharding.Mesh) -> None:
    whole, keys = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "model"))
    pinned = jax.lax.with_sharding_constraint
    function = lambda query, key, value: VARIANTS["plain"](query, pinned(key, whole), pinned(value, whole))  # noqa: E731
    stays(jax.jit(function, in_shardings=(whole, keys, keys), out_shardings=whole), *drawn())


def test_many_layers_after_the_scores(mesh: jax.sharding.Mesh) -> None:
    """Layers that read their input twice are walked once, and may be deeper than Python's stack."""

    def deep(layers: int) -> ir.Module:
        def function(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            for _ in range(layers):
                query, key = query * query, key * key
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
            exponentials = jnp.exp(scores - (scores * scores) @ jnp.swapaxes(scores, 2, 3).max(-1, keepdims=True))
            return jnp.einsum("bhqk,bkhd->bqhd", exponentials / exponentials.sum(-1, keepdims=True), value)

        tokens = NamedSharding(mesh, P("data"))
        return gathered(jax.jit(function, in_shardings=(tokens,) * 3, out_shardings=tokens), *drawn())

    many, few = (lines_run(partial(pipeline.run, (RingAttention(),), deep(layers))) for layers in (1200, 100))
    assert many < 13 * few


def test_uneven_keys_stay_gathered(mesh: jax.sharding.Mesh) -> None:
    attention = VARIANTS["causal"]
    pinned, whole = jax.lax.with_sharding_constraint, NamedSharding(mesh, P("data"))
    keys = NamedSharding(mesh, P("data", "model"))

    def function(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        key, value = (pinned(pinned(each, keys), whole) for each in (key, value))
        return attention(pinned(query, keys), key, value)

    arguments = drawn(length=62)
    module = gathered(jax.jit(function, in_shardings=(whole,) * 3), *arguments)
    pipeline.run((RingAttention(),), module)
    assert counted(module, "mesh.shift") == 0
    found = jax.tree.leaves(meshbridge.compile(module)(*arguments))[0]
    np.testing.assert_allclose(found, attention(*arguments), atol=1e-5)


def long_prompt(mesh: jax.sharding.Mesh) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    return sharded(library(is_causal=True), mesh, "model"), [jax.ShapeDtypeStruct((2, 8192, 32, 128), jnp.bfloat16)] * 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "v5e"}, True),
        ({"machine": "v5e:2x4"}, True),
        ({"machine": "v5p:2x2x2"}, True),
        ({"machine": "v5e:2x4", "collectives": "off"}, False),
        # XLA:GPU runs products of all keys faster.
        ({"machine": "h100"}, False),
        ({"machine": "h100:1x1x8", "memory_limit": "60GB"}, False),
        ({"machine": "h100:1x1x8", "memory_limit": "3GB"}, True),
    ],
)
def test_what_prices_and_memory_choose(options: dict[str, Any], expected: bool, mesh: jax.sharding.Mesh) -> None:
    jitted, arguments = long_prompt(mesh)
    module = meshbridge.partition(jitted, *arguments, emit="mesh", **options)
    assert (counted(module, "mesh.shift") > 0) == expected


def test_rings_need_less_memory(mesh: jax.sharding.Mesh) -> None:
    jitted, arguments = long_prompt(mesh)
    module = gathered(jitted, *arguments)
    before = memory(main_function(module)).temporaries
    pipeline.run((RingAttention(),), module)
    assert memory(main_function(module)).temporaries < before / 2


def test_an_unknown_machine_is_an_error(mesh: jax.sharding.Mesh) -> None:
    jitted, arguments = long_prompt(mesh)
    module = gathered(jitted, *arguments)
    with pytest.raises(MeshError, match="v5e"):
        pipeline.run((RingAttention(CompileTarget.of("v5")),), module)


@pytest.mark.parametrize(("machine", "expected"), [("h100", True), ("v5e:2x4", True), ("neutral", False), ("bytes", False)])
def test_machines_that_have_rings(machine: str, expected: bool) -> None:
    passes = pipeline.build(pipeline.Options.of(machine=machine)).passes
    assert any(isinstance(each, RingAttention) for each in passes) == expected
