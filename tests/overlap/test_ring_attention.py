"""Attention whose keys and values travel around a ring: numbers of one device, bytes of gathers, and what stays gathered."""

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
from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.ir.mlir import MeshError, find, ir, main_function
from meshbridge.overlap.ring_attention import RingAttention
from tests.work import lines_run

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
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
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


def test_many_layers_behind_the_scores(mesh: jax.sharding.Mesh) -> None:
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
        pipeline.run((RingAttention("v5"),), module)


@pytest.mark.parametrize(("machine", "expected"), [("h100", True), ("v5e:2x4", True), ("neutral", False), ("bytes", False)])
def test_machines_that_have_rings(machine: str, expected: bool) -> None:
    passes = pipeline.build(pipeline.Options(machine=machine)).passes
    assert any(isinstance(each, RingAttention) for each in passes) == expected
