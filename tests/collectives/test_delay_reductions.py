"""Gradients that are summed over microbatches, of layers under a loop: reduced once, and right."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge

LAYERS, WIDTH, HIDDEN, MICROBATCHES, BATCH = 3, 32, 48, 4, 512
Weights = tuple[Any, Any]

SHARDED: dict[str, tuple[P, P]] = {
    "replicated": (P(), P()),
    "fully": (P(None, "data", None), P(None, "data", None)),
    "along the model": (P(None, None, "model"), P(None, "model", None)),
    "both": (P(None, "data", "model"), P(None, "model", "data")),
}


def _loss(weights: Weights, x: Any) -> Any:
    @jax.checkpoint
    def layer(h: Any, of: Weights) -> Any:
        return h + jnp.tanh(h @ of[0]) @ of[1], None

    h, _ = jax.lax.scan(layer, x, weights)
    return jnp.mean(h.astype(jnp.float32) ** 2)


def _step(accumulator: str, weights: Weights, batches: Any) -> Any:
    def microbatch(total: Weights, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(weights, x)
        return jax.tree.map(lambda old, new: old + new.astype(accumulator), total, gradients), loss

    zeros = jax.tree.map(lambda weight: jnp.zeros(weight.shape, accumulator), weights)
    total, losses = jax.lax.scan(microbatch, zeros, batches)
    return jax.tree.map(lambda weight, sum_: weight - (0.1 * sum_).astype(weight.dtype), weights, total), losses.mean()


def _example(element: str) -> tuple[Weights, Any]:
    rng = np.random.default_rng(0)
    shapes = (LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH), (MICROBATCHES, BATCH, WIDTH)
    into, out_of, batches = (jnp.asarray(0.2 * rng.standard_normal(shape), element) for shape in shapes)
    return (into, out_of), batches


def _exported(mesh: jax.sharding.Mesh, sharded: str, element: str, accumulator: str) -> export.Exported:
    specs = SHARDED[sharded]
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)

    def step(weights: Weights, batches: Any) -> Any:
        return _step(accumulator, weights, batches)

    jitted = jax.jit(
        step,
        in_shardings=(shardings, NamedSharding(mesh, P(None, "data", None))),
        out_shardings=(shardings, NamedSharding(mesh, P())),
    )
    return export.export(jitted)(*_example(element))


@pytest.mark.parametrize(
    ("element", "accumulator", "machine"),
    [
        pytest.param("float32", "float32", "bytes", marks=pytest.mark.slow),
        pytest.param("bfloat16", "bfloat16", "bytes", marks=pytest.mark.slow),
        ("bfloat16", "float32", "bytes"),
        ("bfloat16", "float32", "h100"),
    ],
)
@pytest.mark.parametrize("sharded", SHARDED)
def test_gradients_of_layers_are_reduced_once(
    mesh: jax.sharding.Mesh, sharded: str, element: str, accumulator: str, machine: str
) -> None:
    exported = _exported(mesh, sharded, element, accumulator)
    report = meshbridge.report(exported, machine=machine)
    often = [each for each in report.collectives if each.executions > MICROBATCHES and "data" in each.axes]
    assert not [each for each in often if each.kind in ("all_reduce", "reduce_scatter")], often
    weights, batches = _example(element)
    partitioned = meshbridge.partition(exported, machine=machine)
    shardings, _ = jax.tree.unflatten(partitioned.in_tree, partitioned.in_shardings_jax(mesh))
    found = jax.jit(partitioned.call, in_shardings=shardings)(weights, batches)
    expected = jax.jit(lambda weights, batches: _step(accumulator, weights, batches))(weights, batches)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        tolerance = 1e-5 if element == "float32" else 2e-2
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=tolerance, atol=tolerance)
