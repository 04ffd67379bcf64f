"""LLVM's traversals: whatever one sweep annotates, the partitioned program computes what one device does."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from meshbridge.ir.mlir import context
from meshbridge.pipeline import build, run
from meshbridge.read import formats
from meshbridge.upstream.sharding_propagation import ShardingPropagation
from meshbridge.upstream.sweep import TRAVERSALS
from tests.operations.differential import Spec, device_mesh, example

SPECS = [
    (Spec("a", None), Spec(None, "b"), Spec("b", None)),
    (Spec(None, "a"), Spec("a", "b"), Spec(None, None)),
    (Spec(None, None), Spec("b", None), Spec("a", "b")),
    (Spec(("b", "a"), None), Spec(None, None), Spec(None, "a")),
]
"""Of an input and two weights: splits that agree, contract, and contradict each other."""


def _block(x: jax.Array, into: jax.Array, out_of: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden = jnp.tanh(x @ into)
    y = x + hidden @ out_of
    return y * 2.0, jnp.max(jnp.sum(y, axis=0))


def _partitioned(exported: Any, traversal: str) -> Any:
    """`exported` by way of the sweeps of `traversal` alone."""
    program = formats.unpack(exported, context())
    run(build().replacing("decided", ShardingPropagation(traversal=traversal)).passes, program.module)
    return formats.pack(program)


@pytest.mark.parametrize(("traversal", "specs"), list(itertools.product(TRAVERSALS, SPECS)))
def test_sweeps_compute_what_one_device_does(traversal: str, specs: tuple[Spec, ...]) -> None:
    mesh, rng = device_mesh((2, 4)), np.random.default_rng(0)
    arguments = [example(rng, shape, "float32") for shape in ((8, 16), (16, 32), (32, 16))]
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    exported = jax.export.export(jax.jit(_block, in_shardings=shardings))(*arguments)
    call = jax.jit(_partitioned(exported, traversal).call, in_shardings=shardings)
    found = call(*[jax.device_put(value, sharding) for value, sharding in zip(arguments, shardings, strict=True)])
    for ours, theirs in zip(found, _block(*arguments), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)
