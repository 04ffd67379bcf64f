"""Python functions that a partitioned program calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from tests.jitted.programs import X, check_same, on_one_device


@pytest.fixture
def blocks(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("data", "model"))


def test_an_effect_happens_once(blocks: NamedSharding) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return x * 2

    jitted = meshbridge.jit(function, in_shardings=blocks)
    for _ in range(2):
        check_same(jitted(X), on_one_device(lambda x: x * 2, X))
    jax.effects_barrier()
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[0], X)


def test_prints_are_of_global_values(blocks: NamedSharding, capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {total:.3f}", total=x.sum())
        return x + 1

    meshbridge.jit(function, in_shardings=blocks)(X)
    jax.effects_barrier()
    assert capsys.readouterr().out == f"sum {X.sum():.3f}\n"


def test_in_loops_and_branches(blocks: NamedSharding) -> None:
    seen: list[float] = []

    def body(i: jax.Array, x: jax.Array) -> jax.Array:
        jax.lax.cond(i > 0, lambda: jax.debug.callback(lambda s: seen.append(float(s)), x.sum()), lambda: None)
        return x + 1

    found = meshbridge.jit(lambda x: jax.lax.fori_loop(0, 3, body, x), in_shardings=blocks)(X)
    check_same(found, on_one_device(lambda x: x + 3, X))
    jax.effects_barrier()
    np.testing.assert_allclose(sorted(seen), [X.sum() + X.size, X.sum() + 2 * X.size], rtol=1e-5)


def test_within_shard_map_each_device_calls(mesh: Mesh, blocks: NamedSharding) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return x * 2

    spec = P("data", "model")
    check_same(
        meshbridge.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))(X), on_one_device(lambda x: x * 2, X)
    )
    jax.effects_barrier()
    assert [each.shape for each in seen] == [(8, 8)] * 8


def test_results_of_pure_callbacks(blocks: NamedSharding) -> None:
    def function(x: jax.Array) -> Any:
        return jax.pure_callback(lambda x: np.sort(x, axis=0), x, x) + 1  # type: ignore[arg-type]

    check_same(meshbridge.jit(function, in_shardings=blocks)(X), on_one_device(lambda x: jax.numpy.sort(x, axis=0) + 1, X))


@pytest.fixture
def seen() -> list[tuple[int, ...]]:
    """The shapes that `doubled` was called with."""
    return []


@pytest.fixture
def doubled(seen: list[tuple[int, ...]]) -> Callable[..., jax.Array]:
    """Twice an array, by a Python function that has an effect."""

    def called(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(x.shape)
        return np.asarray(x) * 2

    return lambda x, **options: io_callback(called, x, x, **options)


Doubled = Callable[..., jax.Array]


def _in_a_loop(doubled: Doubled, x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda _, y: doubled(y, ordered=True), x)


def _in_a_while(doubled: Doubled, x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda y: jnp.abs(y).sum() < 7 * jnp.abs(x).sum(), lambda y: doubled(y, ordered=True), x)


def _in_a_scan(doubled: Doubled, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda y, _: (doubled(y), None), x, length=3)[0]


def _in_a_branch(doubled: Doubled, x: jax.Array) -> jax.Array:
    return jax.lax.cond(x.sum() < jnp.inf, lambda y: doubled(doubled(doubled(y, ordered=True), ordered=True)), lambda y: y, x)


def _one_after_the_other(doubled: Doubled, x: jax.Array) -> jax.Array:
    return doubled(doubled(x, ordered=True) + doubled(x, ordered=True)) + 0 * x


@pytest.mark.parametrize("within", [_in_a_loop, _in_a_while, _in_a_scan, _in_a_branch, _one_after_the_other])
def test_an_effect_with_results_happens_once(
    within: Callable[..., jax.Array], blocks: NamedSharding, doubled: Doubled, seen: list[tuple[int, ...]]
) -> None:
    found = meshbridge.jit(lambda x: within(doubled, x), in_shardings=blocks)(X)
    check_same(found, on_one_device(lambda x: x * 8, X))
    assert seen == [X.shape] * 3


def test_results_come_bit_by_bit(blocks: NamedSharding) -> None:
    """Of every type, without rows, and what no sum with zeros would leave as it is."""
    given = (
        np.array([-0.0, np.nan, np.inf], np.float32),
        np.arange(3) > 1,
        np.int8(-3),
        np.zeros((0, 2), np.float16),
        np.uint32(7),
    )

    def function(x: jax.Array) -> Any:
        return io_callback(lambda _: given, given, x.sum())

    found = meshbridge.jit(function, in_shardings=blocks)(X)
    for each, wanted in zip(found, given, strict=True):
        for shard in each.addressable_shards:
            assert np.asarray(shard.data).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("device", [0, 5])
def test_the_device_that_calls(device: int, blocks: NamedSharding, doubled: Doubled, seen: list[tuple[int, ...]]) -> None:
    """`jax.jit` leaves the results of a device that is not the first on that device alone."""
    jitted = meshbridge.jit(lambda x: doubled(x, sharding=SingleDeviceSharding(jax.devices()[device])), in_shardings=blocks)
    check_same(jitted(X), on_one_device(lambda x: x * 2, X))
    assert seen == [X.shape]
    assert f"stablehlo.constant dense<{device}>" in jitted.partitioned_text(X)


def test_ordered_effects_keep_their_order(blocks: NamedSharding) -> None:
    seen: list[float] = []

    def function(x: jax.Array) -> jax.Array:
        for number in range(5):
            io_callback(lambda each: seen.append(float(each)), None, x[0, 0] * 0 + number, ordered=True)
        return x

    jitted = meshbridge.jit(function, in_shardings=blocks)
    jitted(X)
    jitted(X)
    jax.effects_barrier()
    assert seen == [0, 1, 2, 3, 4] * 2


def test_effects_of_each_shard(blocks: NamedSharding) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x, partitioned=True)
        return x * 2

    check_same(meshbridge.jit(function, in_shardings=blocks)(X), on_one_device(lambda x: x * 2, X))
    jax.effects_barrier()
    assert sorted(each.tobytes() for each in seen) == sorted(
        X[i : i + 8, j : j + 8].tobytes() for i in (0, 8) for j in range(0, 32, 8)
    )


def test_within_a_traced_function(blocks: NamedSharding) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return x * 2

    check_same(jax.jit(meshbridge.jit(function, in_shardings=blocks))(X), on_one_device(lambda x: x * 2, X))
    jax.effects_barrier()
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], X)


def test_effects_of_shards_that_are_not_alike(mesh: Mesh) -> None:
    """Each operand is taken as it is sharded; one whose shards have padding, whole."""
    seen: list[tuple[tuple[int, ...], ...]] = []

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        padded = jax.lax.with_sharding_constraint(x[:3], NamedSharding(mesh, P("model")))
        jax.debug.callback(lambda *each: seen.append(tuple(value.shape for value in each)), x, y, padded, partitioned=True)
        return x @ y

    shardings = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P("data"))
    check_same(meshbridge.jit(function, in_shardings=shardings)(X, X.T), on_one_device(lambda x: x @ x.T, X))
    jax.effects_barrier()
    assert seen == [((8, 8), (16, 16), (3, 32))] * 8
