"""Calls that older versions of JAX wrote for an op are that op: split, and right."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.mlir import MeshError, context, parse

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


def test_the_smallest_are_refused() -> None:
    module = parse(PROGRAM.replace("largest = true", "largest = false"), "older.mlir", context())
    with pytest.raises(MeshError, match=r":6:10: error: 'stablehlo.custom_call' op @mhlo.topk takes the smallest elements"):
        meshbridge.compile(module)
