"""Collectives and products in the order of the predicted schedule: the numbers stay, and so do bytes and collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.cost.communication import communication
from meshbridge.ir.mlir import BARRIER, find
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.schedule.keep_schedule import KeepSchedule

P = PartitionSpec
WIDTH, HIDDEN, BATCH, LAYERS = 16, 32, 128, 3


def training_step(mesh: jax.sharding.Mesh, *, scanned: bool, fully: bool = False) -> Any:
    """A step of tensor-parallel layers, one after the other or under scan, data parallel, or `fully` sharded with products that
    take longer than gathers; and its arguments."""
    over, batch = ("data", 512 * BATCH) if fully else (None, BATCH)
    spec = P(None, over, "model"), P(None, "model", over), P("data", None)
    first, second, rows = (NamedSharding(mesh, each) for each in spec)

    def layer(x: Any, weights: Any) -> Any:
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ weights[0]), NamedSharding(mesh, P("data", "model")))
        return jax.lax.with_sharding_constraint(x + hidden @ weights[1], rows), None

    def loss(weights: Any, x: Any) -> Any:
        if scanned:
            out, _ = jax.lax.scan(layer, x, weights)
        else:
            out = x
            for number in range(LAYERS):
                out, _ = layer(out, jax.tree.map(lambda stack, number=number: stack[number], weights))
        return (out**2).sum()

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, jax.grad(loss)(weights, x))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH), (batch, WIDTH)]
    values = [0.1 * jax.random.normal(key, shape, jnp.float32) for key, shape in zip(keys, shapes, strict=True)]
    jitted = jax.jit(step, in_shardings=((first, second), rows), out_shardings=(first, second))
    return jitted, step, ((values[0], values[1]), values[2])


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("machine", ["h100", "h100:1x1x8", "v5p"])
def test_numbers_bytes_and_collectives(mesh: jax.sharding.Mesh, scanned: bool, machine: str) -> None:
    jitted, step, arguments = training_step(mesh, scanned=scanned, fully=machine == "v5p")
    # As the partitioner leaves them: small reductions would be combined into one.
    tied, free = (meshbridge.partition(jitted, *arguments, emit="mesh", machine="bytes", collectives="off") for _ in range(2))
    pipeline.run((KeepSchedule(CompileTarget.of(machine, compiler_options="best"), least=0),), tied)
    assert len(find(tied.operation, [BARRIER])) > len(find(free.operation, [BARRIER]))
    sent, expected = (communication(module) for module in (tied, free))
    assert (sent.wire_bytes, sent.executions) == (expected.wire_bytes, expected.executions)
    flat = jax.tree.leaves(arguments)
    results = [meshbridge.compile(module)(*flat) for module in (tied, free)]
    for found, same, right in zip(*results, jax.tree.leaves(step(*arguments)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(same))
        np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scanned", [False, True])
def test_ties_of_one_schedule_beside_those_of_another(mesh: jax.sharding.Mesh, scanned: bool) -> None:
    """As of a plan for one machine that is predicted on another: nothing waits for itself."""
    jitted, step, arguments = training_step(mesh, scanned=scanned)
    module = meshbridge.partition(jitted, *arguments, emit="mesh", machine="bytes", collectives="off")
    pipeline.run(
        [KeepSchedule(CompileTarget.of(machine), least=0) for machine in ("h100", "h100:1x4x2", "a100:1x1x8", "h100:1x1x8")],
        module,
    )
    results = meshbridge.compile(module)(*jax.tree.leaves(arguments))
    for found, right in zip(results, jax.tree.leaves(step(*arguments)), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "h100"}, True),
        ({"machine": "a100:1x1x8"}, True),
        ({"machine": "h100", "collectives": "off"}, False),
        ({"machine": "v5e"}, False),
        ({"machine": "v5p"}, False),
        ({"machine": "v5p", "compiler_options": "best"}, True),
        ({"machine": "v6e", "compiler_options": "best"}, False),
        ({"machine": "neutral"}, False),
    ],
)
def test_machines_whose_compiler_puts_collectives_off(options: dict[str, Any], expected: bool) -> None:
    passes = pipeline.build(pipeline.Options.of(**options)).passes
    assert any(isinstance(each, KeepSchedule) for each in passes) == expected
