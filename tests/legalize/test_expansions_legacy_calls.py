"""Calls that older versions of JAX wrote for an op are that op: split, and right."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.ir.mlir import MeshError, context, parse
from meshbridge.verification.verdict import verify

PROGRAM = """
sdy.mesh @m = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>})
    -> (tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xi32>) {
  %0 = stablehlo.custom_call @mhlo.erf(%x) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 4 : i64, largest = true}, mhlo.version = 1 : i64} :
    (tensor<8x16xf32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)
  return %0, %1#0, %1#1 : tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xi32>
}
"""


def test_error_functions_and_top_k() -> None:
    module = parse(PROGRAM, "older.mlir", context())
    assert not meshbridge.report(module).not_partitioned
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    erf, largest, places = meshbridge.compile(module)(x)
    np.testing.assert_allclose(erf, jax.scipy.special.erf(x), rtol=1e-6, atol=1e-6)
    values, indices = jax.lax.top_k(x, 4)
    np.testing.assert_array_equal(largest, values)
    np.testing.assert_array_equal(places, indices)


def test_they_verify_as_what_they_stand_for() -> None:
    """Exact evaluation finds the calls of the source equal to the operations of what is made of it, and finds what is not."""
    program = """
    func.func @main(%x: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xi32>) {{
      %0 = {erf} : {unary}
      %1 = {tan} : {unary}
      %2:2 = {top_k} : {selection}
      return %0, %1, %2#0, %2#1 : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xi32>
    }}"""
    unary, selection = "(tensor<8x16xf32>) -> tensor<8x16xf32>", "(tensor<8x16xf32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)"
    older = program.format(
        erf="stablehlo.custom_call @mhlo.erf(%x) {mhlo.attributes = {}, mhlo.version = 1 : i64}",
        tan="stablehlo.custom_call @mhlo.tan(%x) {mhlo.attributes = {}, mhlo.version = 1 : i64}",
        top_k="stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 4 : i64}, mhlo.version = 1 : i64}",
        unary=unary,
        selection=selection,
    )
    operations = program.format(
        erf='"chlo.erf"(%x)', tan='"chlo.tan"(%x)', top_k='"chlo.top_k"(%x) {k = 4 : i64}', unary=unary, selection=selection
    )
    ctx = context()
    source, same, other = (
        parse(text, "m.mlir", ctx) for text in (older, operations, operations.replace("chlo.erf", "chlo.erfc"))
    )
    assert verify(source, same).equal
    assert [difference.result for difference in verify(source, other).differences] == [0]


def test_the_smallest_are_refused() -> None:
    module = parse(PROGRAM.replace("largest = true", "largest = false"), "older.mlir", context())
    with pytest.raises(MeshError, match=r":6:10: error: 'stablehlo.custom_call' op @mhlo.topk takes the smallest elements"):
        meshbridge.compile(module)
    with pytest.raises(MeshError, match=r"@mhlo\.topk takes the smallest elements, which has no exact evaluation"):
        verify(module, module)
