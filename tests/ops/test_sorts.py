"""What ordering along a split dimension sends: an all-to-all if another dimension can take the axis, k candidates for top_k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import meshbridge
from tests.operations.differential import Spec, device_mesh, run_sharded

SIZE = 64
COLUMNS, ROWS = Spec(None, "a"), Spec("a", None)
MOVE = SIZE * SIZE * 4 / 8 * 7 / 8
"""Bytes that one of 8 devices sends to move the split of a float32 matrix from one dimension to the other."""

CASES: dict[str, tuple[Callable[..., Any], Spec, Spec | None, float]] = {
    "sort": (lambda x: jnp.sort(x, 1), COLUMNS, None, MOVE),
    "sort and back": (lambda x: jnp.sort(x, 1), COLUMNS, COLUMNS, 2 * MOVE),
    "sort to columns": (lambda x: jnp.sort(x, 1), ROWS, COLUMNS, MOVE),
    "argsort": (lambda x: jnp.argsort(x, 0), ROWS, None, MOVE),
    "variadic sort": (lambda x: lax.sort((x, x + 1, -x), dimension=0, num_keys=2), ROWS, None, MOVE),
    "top_k": (lambda x: lax.top_k(x, 5), COLUMNS, None, SIZE * 5 * (4 + 4) * 7),
    "argmax": (lambda x: jnp.argmax(x, 1), COLUMNS, None, 2 * 2 * SIZE * 4 * 7 / 8),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), COLUMNS, None, 2 * MOVE),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_values(name: str) -> None:
    function, given, wanted, most = CASES[name]
    mesh = device_mesh((8,))
    x = np.random.default_rng(0).integers(0, 99, (SIZE, SIZE)).astype(np.float32)
    into = None if wanted is None else NamedSharding(mesh, wanted)
    sharded = jax.jit(function, in_shardings=NamedSharding(mesh, given), out_shardings=into)
    with jax.set_mesh(mesh):
        exported = jax.export.export(sharded)(x)
    assert meshbridge.report(exported, machine="bytes").wire_bytes <= most
    got, expected = run_sharded(function, [x], mesh, [given], wanted)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(3, 50), (64,)])
def test_top_k_takes_the_first_of_equals(dtype: str, shape: tuple[int, ...]) -> None:
    """Ties, infinities and NaNs of both signs come as in the unsharded program, on uneven shards too."""
    mesh = device_mesh((2, 4))
    x = np.random.default_rng(1).integers(0, 5, shape).astype(jnp.dtype(dtype))
    if dtype == "float32":
        x[..., [3, 40]], x[..., 7], x[..., [9, 11]], x[..., 20] = np.nan, -np.nan, np.inf, -np.inf

    def function(x: jax.Array) -> Any:
        spec = Spec(*[None] * (x.ndim - 1), ("b", "a"))
        return lax.top_k(lax.with_sharding_constraint(x, NamedSharding(mesh, spec)), 12)

    got, expected = run_sharded(function, [x], mesh, [Spec()], compare_with=lambda x: lax.top_k(x, 12))
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_top_none() -> None:
    """The 0 largest are an empty result."""
    x = np.ones((4, 16), np.float32)
    got, _ = run_sharded(lambda x: lax.top_k(x, 0), [x], device_mesh((8,)), [COLUMNS])
    assert [part.shape for part in got] == [(4, 0), (4, 0)]
