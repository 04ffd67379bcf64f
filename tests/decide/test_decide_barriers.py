"""What stands after an optimisation barrier is computed again, and what it was gathered from is gathered again."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir import mlir
from meshbridge.ir.mlir import BARRIER
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options
from meshbridge.read import formats

LAYERS, WIDTH, HIDDEN = 2, 64, 128


def loss(parameters: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Of residual layers, each computed again in the backward pass."""
    for layer in parameters:
        x = x + jax.checkpoint(lambda x, layer: jnp.tanh(x @ layer["into"]) @ layer["out_of"])(x, layer)
    return jnp.mean(x * x)


def gradients(rows: int) -> jax.export.Exported:
    """Those of the parameters, which are fully sharded over 8 devices."""
    by_rows = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("data",)), P("data", None))
    layer = {"into": jax.ShapeDtypeStruct((WIDTH, HIDDEN), "float32"), "out_of": jax.ShapeDtypeStruct((HIDDEN, WIDTH), "float32")}
    jitted = jax.jit(jax.grad(loss), in_shardings=by_rows, out_shardings=by_rows)
    return jax.export.export(jitted)([layer] * LAYERS, jax.ShapeDtypeStruct((rows, WIDTH), "float32"))


def test_a_barrier_takes_parameters_as_they_are_stored() -> None:
    module = formats.unpack(gradients(2**20), mlir.context()).module
    partition_module(module, Options(emit="mesh"))
    ops = list(mlir.walk_all(module))
    barriers = [op for op in ops if op.name == BARRIER]
    assert len(barriers) == LAYERS
    parameters = [(WIDTH // 8, HIDDEN), (HIDDEN // 8, WIDTH)]
    for barrier in barriers:
        assert [shape for value in barrier.operands if (shape := tuple(value.type.shape)) in parameters] == parameters
    # Many rows: the two parameters of a layer are gathered, in one collective, forward and backward.
    assert sum(op.name == AllGatherOp.OPERATION_NAME for op in ops) == 2 * LAYERS


def test_numbers_are_those_of_one_device() -> None:
    rng = np.random.default_rng(0)
    shapes = {"into": (WIDTH, HIDDEN), "out_of": (HIDDEN, WIDTH)}
    parameters = [{name: rng.standard_normal(shape, "float32") / 8 for name, shape in shapes.items()} for _ in range(LAYERS)]
    x = rng.standard_normal((2048, WIDTH), "float32")
    found, expected = meshbridge.compile(gradients(2048))(parameters, x), jax.grad(loss)(parameters, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
