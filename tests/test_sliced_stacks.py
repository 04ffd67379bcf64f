"""Frozen weights of stacked layers are gathered a layer at a time, in the loop that reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from tests.operations.differential import device_mesh

LAYERS, WIDTH, RANK, ROWS = 8, 128, 8, 64


def _step(adapters: tuple[jax.Array, jax.Array], frozen: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of low-rank adapters of frozen layers, each layer computed again in the backward pass."""

    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        whole, into, out_of = weights
        return jnp.tanh(x @ whole + (x @ into) @ out_of), None

    def loss(adapters: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.square(jax.lax.scan(jax.checkpoint(layer), x, (frozen, *adapters))[0]).mean()

    gradients: tuple[jax.Array, jax.Array] = jax.grad(loss)(adapters)
    return gradients


def _exported() -> export.Exported:
    """The step under FSDP of eight devices."""
    mesh = device_mesh((8,))
    rows, columns, batch = (NamedSharding(mesh, P(*spec)) for spec in ((None, "a"), (None, None, "a"), ("a",)))
    shapes = ((LAYERS, WIDTH, RANK), (LAYERS, RANK, WIDTH), (LAYERS, WIDTH, WIDTH), (ROWS, WIDTH))
    into, out_of, frozen, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    jitted = jax.jit(_step, in_shardings=((rows, columns), rows, batch), out_shardings=(rows, columns))
    return export.export(jitted)((into, out_of), frozen, x)


@pytest.mark.parametrize("machine", ["bytes", "neutral", "v5e:2x4"])
def test_no_device_holds_all_layers(machine: str) -> None:
    stack = 4 * LAYERS * WIDTH * WIDTH
    report = meshbridge.report(_exported(), machine=machine)
    assert report.memory.temporaries < stack


def test_numbers_stay() -> None:
    exported = _exported()
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(aval.shape, "float32") / 8 for aval in exported.in_avals]
    placed = [
        jax.device_put(value, sharding)
        for value, sharding in zip(values, exported.in_shardings_jax(device_mesh((8,))), strict=True)
    ]
    into, out_of, frozen, x = placed
    found = jax.jit(meshbridge.partition(exported).call)((into, out_of), frozen, x)
    into, out_of, frozen, x = map(jnp.asarray, values)
    for mine, expected in zip(found, _step((into, out_of), frozen, x), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=1e-6)
