"""Python functions that a partitioned program calls."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MeshError
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


def test_an_effect_with_results_is_refused(blocks: NamedSharding) -> None:
    def function(x: jax.Array) -> Any:
        return io_callback(lambda x: np.asarray(x), x, x) + 1

    with pytest.raises(
        MeshError, match=r"test_function_callbacks.py:\d+:\d+: error: .* calls a Python function that has an effect"
    ):
        meshbridge.jit(function, in_shardings=blocks)(X)


def test_within_a_traced_function(blocks: NamedSharding) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return x * 2

    check_same(jax.jit(meshbridge.jit(function, in_shardings=blocks))(X), on_one_device(lambda x: x * 2, X))
    jax.effects_barrier()
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], X)
