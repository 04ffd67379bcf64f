"""Reductions with bodies of several ops and of several values, along split dimensions: one slice per device is gathered."""

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
from tests.operations.differential import Spec, assert_close, device_mesh, example, run_sharded

F32 = "float32"


def log_sum(x: jax.Array) -> jax.Array:
    """From an initial value that is not neutral."""
    return lax.reduce(x, np.float32(1.5), jnp.logaddexp, (0,))


def nearest_to_two(x: jax.Array) -> jax.Array:
    def nearer(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.select(lax.abs(a - 2) <= lax.abs(b - 2), a, b)

    return lax.reduce(x, np.float32(100), nearer, (1,))


def first(x: jax.Array) -> Any:
    """Associative, not commutative: the first pair whose flag is set."""
    flags = (x > 0.5).astype(jnp.int32)

    def earlier(a: Any, b: Any) -> Any:
        return lax.select(a[0] > 0, a[0], b[0]), lax.select(a[0] > 0, a[1], b[1])

    return lax.reduce((flags, x), (np.int32(0), np.float32(-7)), earlier, (0,))


def composed(x: jax.Array) -> Any:
    """Affine maps one after the other."""
    return lax.reduce((x * 0.5, x), (np.float32(2), np.float32(3)), lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]), (0,))


def argmax_from_zero(x: jax.Array) -> Any:
    """An initial value that may win, so that this is no plain argmax."""

    def larger(a: Any, b: Any) -> Any:
        wins = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return lax.select(wins, a[0], b[0]), lax.select(wins, a[1], b[1])

    return lax.reduce((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), (np.float32(0), np.int32(-1)), larger, (1,))


def log_sum_of_all(x: jax.Array) -> jax.Array:
    return lax.reduce(x, np.float32(1.5), jnp.logaddexp, (0, 1))


def last_of_all(x: jax.Array) -> Any:
    """Not commutative, over both dimensions: the last pair, in the order of rows, whose flag is set."""
    flags = (x > 0.5).astype(jnp.int32)

    def later(a: Any, b: Any) -> Any:
        return lax.select(b[0] > 0, b[0], a[0]), lax.select(b[0] > 0, b[1], a[1])

    return lax.reduce((flags, x), (np.int32(0), np.float32(-7)), later, (0, 1))


def composed_outside(x: jax.Array) -> Any:
    """Affine maps over the outer two of three dimensions."""
    scales = x[:, :, None] * np.float32([0.9, 0.5, -0.7])

    def after(f: Any, g: Any) -> Any:
        return f[0] * g[0], f[1] * g[0] + g[1]

    return lax.reduce((scales, scales + 1), (np.float32(2), np.float32(3)), after, (0, 1))


FUNCTIONS: list[Callable[..., Any]] = [
    log_sum,
    nearest_to_two,
    first,
    composed,
    argmax_from_zero,
    log_sum_of_all,
    last_of_all,
    composed_outside,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("shape", [(16, 8), (10, 13), (3, 5)], ids=str)
@pytest.mark.parametrize("spec", [Spec(("a", "b"), None), Spec("b", "a"), Spec("a", "b"), Spec(None, ("b", "a"))], ids=str)
def test_equals_unsharded(function: Callable[..., Any], shape: tuple[int, ...], spec: Spec) -> None:
    mesh = device_mesh((2, 4))
    x = example(np.random.default_rng(3), shape, F32)

    def constrained(x: jax.Array) -> Any:
        return function(lax.with_sharding_constraint(x, NamedSharding(mesh, spec)))

    assert_close(*run_sharded(constrained, [x], mesh, [Spec()], compare_with=function))


def test_sends_one_slice_per_device() -> None:
    mesh = device_mesh((8,))
    with jax.set_mesh(mesh):
        exported = jax.export.export(jax.jit(log_sum, in_shardings=NamedSharding(mesh, Spec("a"))))(np.ones((64, 6), np.float32))
    assert meshbridge.report(exported).wire_bytes == 7 * 6 * 4


def test_sends_one_number_per_device_where_both_dimensions_are_reduced() -> None:
    mesh = device_mesh((8,))
    with jax.set_mesh(mesh):
        traced = jax.jit(log_sum_of_all, in_shardings=NamedSharding(mesh, Spec("a")))
        exported = jax.export.export(traced)(np.ones((64, 6), np.float32))
    assert meshbridge.report(exported).wire_bytes == 7 * 4
