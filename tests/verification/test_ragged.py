"""Products with groups of rows or of contracted elements: the op's exact evaluation is that of its decomposition in artifacts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.mlir import context, ir, walk_all
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.operations.differential import device_mesh
from tests.ragged_numbers import BATCHED, CONTRACTED

CASES = {
    "rows": (lambda x, w, g: lax.ragged_dot(x, w, g), (16, 6), (3, 6, 8), (3,), (None, None, "a")),
    "contracted": (lambda x, w, g: lax.ragged_dot_general(x, w, g, CONTRACTED), (16, 6), (16, 8), (3,), (None, "a")),
    "batches": (lambda x, w, g: lax.ragged_dot_general(x, w, g, BATCHED), (8, 6, 5), (8, 3, 5, 4), (8, 3), ("a",)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_op_of_an_artifact_is_its_decomposition(case: str) -> None:
    function, left, right, groups, spec = CASES[case]
    mesh = device_mesh((8,))
    shapes = (
        jax.ShapeDtypeStruct(left, jnp.float32),
        jax.ShapeDtypeStruct(right, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))),
        jax.ShapeDtypeStruct(groups, jnp.int32),
    )
    exported = export.export(jax.jit(function), platforms=["cuda"])(*shapes)
    source = formats.unpack(exported, context()).module
    planned = meshbridge.partition(source)
    assert "stablehlo.composite" in _names(source)
    assert "chlo.ragged_dot" in _names(planned)
    assert verify(source, planned).equal


def _names(module: ir.Module) -> set[str]:
    return {op.name for op in walk_all(module)}
