"""What the tests of `meshbridge.jit` share: arrays, and what a call has to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

from meshbridge.jitted import plan_cache

RANDOM = np.random.default_rng(0)
X = (RANDOM.random((16, 32)) - 0.5).astype(np.float32)
W = (RANDOM.random((32, 64)) - 0.5).astype(np.float32)


@contextmanager
def plans() -> Iterator[list[str]]:
    """The names of the modules that are partitioned meanwhile."""
    found: list[str] = []

    def noted(module: Any, options: Any) -> None:
        found.append(str(module.operation.attributes["sym_name"]))
        partition(module, options)

    partition = plan_cache.partition_module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "partition_module", noted)
        yield found


def check_same(found: Any, expected: Any) -> None:
    """Whether two trees of arrays are alike: structure, types, weak types, and values up to the order of sums."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert getattr(got, "weak_type", False) == getattr(wanted, "weak_type", False)
        if jax.dtypes.issubdtype(got.dtype, jax.dtypes.prng_key):
            got, wanted = jax.random.key_data(got), jax.random.key_data(wanted)
        tolerance = 2e-2 if got.dtype == jax.numpy.bfloat16 else 2e-5
        wide = np.complex128 if jax.numpy.iscomplexobj(got) else np.float64
        values, known = np.asarray(got, wide), np.asarray(wanted, wide)
        np.testing.assert_allclose(values, known, rtol=tolerance, atol=tolerance * max(1.0, np.abs(known).max(initial=0)))


def check(jitted: Callable[..., Any], function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Whether a partitioned function gives what the function as it is written gives on one device."""
    check_same(jitted(*arguments, **named), on_one_device(function, *arguments, **named))


def on_one_device(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What plain `jax.jit` computes of host copies of the arguments."""
    return jax.jit(function)(*jax.tree.map(_on_host, arguments), **jax.tree.map(_on_host, named))


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
