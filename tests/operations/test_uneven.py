"""Uneven shards: constraints that do not divide, on sizes that leave padding, one real row or none on some devices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from tests.operations.differential import SEED, Spec, assert_close, device_mesh, example, run_sharded

F32, I32, BIT = "float32", "int32", "bool"

CASES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], str]]]] = {
    "elementwise": (lambda x, y: jnp.sin(x) * y, [((10, 7), F32), ((10, 7), F32)]),
    "divide": (lambda x, y: (x / y).sum(axis=0), [((10, 7), F32), ((10, 7), F32)]),
    "dot": (lambda x, y: x @ y, [((10, 7), F32), ((7, 5), F32)]),
    "dot_log": (lambda x, y: jnp.log(jnp.abs(x)) @ (1 / y), [((10, 7), F32), ((7, 5), F32)]),
    "sum": (lambda x: (x.sum(0), x.sum(1), x.sum()), [((10, 7), F32)]),
    "max": (lambda x: (x.max(0), x.min(1)), [((10, 7), F32)]),
    "max_integer": (lambda x: (-x.max(0), (x - 9).max(1), (x + 9).min(1)), [((10, 7), I32)]),
    "prod": (lambda x: jnp.prod(x, axis=0), [((10, 7), F32)]),
    "any_all": (lambda x: (x.any(0), x.all(1)), [((10, 7), BIT)]),
    "softmax": (lambda x: jax.nn.softmax(x, axis=0), [((10, 7), F32)]),
    "mean_variance": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), [((10, 7), F32)]),
    "transpose": (lambda x: jnp.exp(x.T) @ x, [((10, 7), F32)]),
    "reshape": (lambda x: jnp.cos(x.reshape(10, 2, 3)).reshape(60), [((10, 6), F32)]),
    "broadcast": (lambda x, b: x + b, [((10, 7), F32), ((7,), F32)]),
    "iota": (lambda x: x * jnp.arange(10.0)[:, None], [((10, 7), F32)]),
    "embedding": (lambda t, i: t[i], [((10, 7), F32), ((5,), I32)]),
    "embedding_gradient": (lambda t, i, g: jax.grad(lambda t: (t[i] * g).sum())(t), [((10, 7), F32), ((5,), I32), ((5, 7), F32)]),
    "scatter_max": (lambda t, i, g: t.at[i].max(g), [((10, 7), F32), ((5,), I32), ((5, 7), F32)]),
    "slice": (lambda x: x[2:9] * 2, [((10, 7), F32)]),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), [((10, 7), F32), ((10, 3), F32)]),
    "sort": (lambda x: jnp.sort(x, axis=1), [((10, 7), F32)]),
    "cumsum_reverse": (lambda x: jax.lax.cumsum(1 / x, axis=0, reverse=True), [((10, 7), F32)]),
    "cumsum": (lambda x: jnp.cumsum(x, axis=0), [((10, 7), F32)]),
    "scan": (lambda xs: jax.lax.scan(lambda c, x: (c + x, (c * x).sum()), xs[0], xs), [((3, 10, 7), F32)]),
    "few": (lambda x: (jnp.exp(x), x.sum(0)), [((3, 1), F32)]),
    "one": (lambda x: (jnp.exp(x), x.sum(0)), [((1, 5), F32)]),
}


def _random_spec(chooser: random.Random, rank: int, axes: tuple[str, ...]) -> Spec:
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in chooser.sample(axes, len(axes)):
        place = chooser.randrange(-1, rank)
        if place >= 0:
            entries[place].append(axis)
    return Spec(*[tuple(entry) or None for entry in entries])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh_shape", [(2, 4), (2, 3)], ids=["2x4", "2x3"])
def test_equals_unsharded(name: str, mesh_shape: tuple[int, ...]) -> None:
    function, shapes = CASES[name]
    mesh = device_mesh(mesh_shape)
    chooser = random.Random(SEED + name)
    arguments = [example(np.random.default_rng(1), shape, dtype) for shape, dtype in shapes]
    for _ in range(3):
        specs = [_random_spec(chooser, len(shape), mesh.axis_names) for shape, _ in shapes]
        out = chooser.random()

        def constrained(*values: jax.Array, specs: list[Spec] = specs, out: float = out) -> Any:
            placed = [jax.lax.with_sharding_constraint(v, NamedSharding(mesh, s)) for v, s in zip(values, specs, strict=True)]
            result = function(*placed)
            if out < 0.5 and isinstance(result, jax.Array):
                spec = _random_spec(random.Random(out), result.ndim, mesh.axis_names)
                return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, spec))
            return result

        got, want = run_sharded(constrained, arguments, mesh, [Spec()] * len(arguments), compare_with=function)
        try:
            assert_close(got, want)
        except AssertionError as error:
            raise AssertionError(f"{specs}: {error}") from None
