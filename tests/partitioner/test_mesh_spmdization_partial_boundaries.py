"""Arguments and results that are declared partial by another kind than sum: callers hold the reduced value.

JAX and Shardy have a word for the terms of a sum alone, `unreduced`: a maximum passed on as that would be added up.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.dialect.ops import BOUNDARY_PARTIAL
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization
from meshbridge.read import formats
from meshbridge.runtime import reference

PROGRAM = """
mesh.mesh @m(shape = 2x4)
func.func @main(%x: tensor<8x4x{element}>) -> tensor<{result}x{element}> {{
  %partial = mesh.sharding @m split_axes = [[0]] partial = {kind} [1] : !mesh.sharding
  %split = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
{body}
}}
"""
PLACES = {
    "an argument": (
        "8x4",
        """  %0 = mesh.shard %x to %partial : tensor<8x4x{element}>
  %1 = stablehlo.negate %0 : tensor<8x4x{element}>
  return %1 : tensor<8x4x{element}>""",
    ),
    "an argument that is returned": (
        "8x4",
        """  %0 = mesh.shard %x to %partial : tensor<8x4x{element}>
  %1 = mesh.shard %0 to %partial annotate_for_users : tensor<8x4x{element}>
  return %1 : tensor<8x4x{element}>""",
    ),
    "a result, where it is defined": (
        "8",
        """  %0 = mesh.shard %x to %split : tensor<8x4x{element}>
  %c = stablehlo.constant dense<{start}> : tensor<{element}>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.{reducer} across dimensions = [1]
      : (tensor<8x4x{element}>, tensor<{element}>) -> tensor<8x{element}>
  %2 = mesh.shard %1 to %partial : tensor<8x{element}>
  return %2 : tensor<8x{element}>""",
    ),
    "a result, where it is returned": (
        "8x4",
        """  %0 = mesh.shard %x to %split : tensor<8x4x{element}>
  %1 = stablehlo.negate %0 : tensor<8x4x{element}>
  %2 = mesh.shard %1 to %partial annotate_for_users : tensor<8x4x{element}>
  return %2 : tensor<8x4x{element}>""",
    ),
}
KINDS = {
    "max": ("f32", "maximum", "0xFF800000"),
    "min": ("f32", "minimum", "0x7F800000"),
    "product": ("f32", "multiply", "1.0"),
    "average": ("f32", "add", "0.0"),
    "sum": ("f32", "add", "0.0"),
    "bitwise_and": ("i32", "and", "-1"),
    "bitwise_or": ("i32", "or", "0"),
    "bitwise_xor": ("i32", "xor", "0"),
}
OTHERS = [kind for kind in KINDS if kind != "sum"]
RUN = ["max", "product", "average", "bitwise_xor"]
"""Those that are also run: the largest, what is not idempotent, what is divided, and integers."""


def _parsed(place: str, kind: str) -> ir.Module:
    (result, body), (element, reducer, start) = PLACES[place], KINDS[kind]
    said = {"element": element, "kind": kind, "reducer": reducer, "start": start}
    text = PROGRAM.format(result=result, body=body.format(**said), **said)
    return formats.read(text.encode(), "boundary.mlir", mlir.context()).module


def _is_partial(module: ir.Module) -> bool:
    main = mlir.main_function(module)
    return any(BOUNDARY_PARTIAL in entry for side in mlir.SIDES for entry in mlir.entries(main, side))


@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("place", PLACES)
def test_callers_hold_the_reduced_value(place: str, kind: str) -> None:
    x = np.random.default_rng(0).integers(-(2**20), 2**20, (8, 4)).astype(np.int32 if kind.startswith("bitwise") else np.float32)
    (wanted,) = reference.unsharded(_parsed(place, kind), [x])
    (found,) = meshbridge.compile(_parsed(place, kind))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("place", PLACES)
def test_no_kind_but_sum_is_written_down(place: str, kind: str, decides: bool) -> None:
    """Neither where meshbridge decides nor where it follows annotations."""
    module = _parsed(place, kind)
    if decides:
        partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    else:
        pipeline.run([MeshSpmdization(boundary=True)], module)
    assert not _is_partial(module)


def test_terms_of_a_sum_stay() -> None:
    module = _parsed("a result, where it is defined", "sum")
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    assert _is_partial(module)
