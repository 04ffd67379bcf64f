"""Parameters that a loop gathers an iteration ahead: the numbers stay, and so do bytes and collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.ir.mlir import find, ir
from meshbridge.overlap.loops.prefetch_gathers import PrefetchGathers


def training_step(mesh: jax.sharding.Mesh, layers: int, width: int, dtype: Any) -> Any:
    """A step of layers under scan, computed again in the backward pass, all parameters sharded; and its arguments."""
    everywhere, batch = ("data", "model"), ("data",)
    sharded = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, None, everywhere), (None, batch), (everywhere,))]

    def layer(x: Any, weights: Any) -> Any:
        first, second = weights
        return x + jnp.tanh(x @ first) @ second, None

    def loss(weights: Any, x: Any) -> Any:
        out, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return (out.astype(jnp.float32) ** 2).sum()

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, jax.grad(loss)(weights, x))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(layers, width, 64), (layers, 64, width), (1024, width)]
    first, second, x = (0.1 * jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
    jitted = jax.jit(step, in_shardings=((sharded[0], sharded[1]), sharded[2]), out_shardings=(sharded[0], sharded[1]))
    return jitted, step, ((first, second), x)


def carried(module: ir.Module) -> int:
    """How many values loops carry."""
    return sum(len(loop.results) for loop in find(module.operation, ["stablehlo.while"]))


@pytest.mark.slow
@given(
    layers=st.integers(2, 5),
    width=st.sampled_from([24, 40, 64]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    again=st.booleans(),
)
def test_numbers_bytes_and_collectives(mesh: jax.sharding.Mesh, layers: int, width: int, dtype: Any, again: bool) -> None:
    jitted, step, arguments = training_step(mesh, layers, width, dtype)
    # As the partitioner leaves them, collectives stand in the loops: small ones would go before these.
    ahead, before = (meshbridge.partition(jitted, *arguments, emit="mesh", machine="bytes", collectives="off") for _ in range(2))
    pipeline.run((PrefetchGathers(least=0, again=again),), ahead)
    assert carried(ahead) > carried(before)
    sent, expected = (communication(module) for module in (ahead, before))
    if again:
        # Once more for each loop.
        assert expected.executions < sent.executions <= expected.executions * (1 + 1 / layers)
        assert expected.wire_bytes < sent.wire_bytes <= expected.wire_bytes * (1 + 1 / layers)
    else:
        assert (sent.wire_bytes, sent.executions) == (expected.wire_bytes, expected.executions)
    flat = jax.tree.leaves(arguments)
    results = [meshbridge.compile(module)(*flat) for module in (ahead, before)]
    for found, same, right in zip(*results, jax.tree.leaves(step(*arguments)), strict=True):
        other, wide = np.asarray(found, np.float32), np.asarray(right, np.float32)
        np.testing.assert_allclose(other, np.asarray(same, np.float32), rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5, atol=1e-5)
        np.testing.assert_allclose(other, wide, atol=(2e-2 if dtype == jnp.bfloat16 else 1e-5) * np.abs(wide).max())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "h100"}, True),
        ({"machine": "h100", "collectives": "off"}, False),
        ({"machine": "v5e"}, False),
        ({"machine": "v5p"}, False),
        ({"machine": "v5p", "compiler_options": "best"}, True),
        ({"machine": "neutral"}, False),
    ],
)
def test_machines_that_gather_ahead(options: dict[str, Any], expected: bool) -> None:
    passes = pipeline.build(pipeline.Options.of(**options)).passes
    assert any(isinstance(each, PrefetchGathers) for each in passes) == expected
