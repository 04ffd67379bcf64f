"""Infinities and NaN stand where they do in the source: masks that leave nothing, divisions by zero, guards."""

from __future__ import annotations

import numpy as np
import pytest

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.verification.extended import OMEGA, ExtendedField, differs
from meshbridge.verification.field import PRIMES
from meshbridge.verification.program import open_program
from meshbridge.verification.verdict import LINES, NONE, verify

FIELD = ExtendedField(PRIMES[0], 5, 1)
INF, NAN = np.array([OMEGA]), np.array([np.nan])


def numbers(name: str, *shape: int) -> np.ndarray:
    return FIELD.random(name, shape)


def test_sums_and_products_of_infinities() -> None:
    x, zero = numbers("x", 1), np.zeros(1)
    assert np.isnan(FIELD.multiply(INF, zero)).all()
    assert np.isnan(FIELD.subtract(INF, INF)).all()
    assert np.isnan(FIELD.divide(zero, zero)).all()
    assert FIELD.divide(x, zero) == FIELD.multiply(x, INF)
    assert FIELD.divide(x, INF) == 0
    assert FIELD.add(x, INF) == INF
    assert FIELD.multiply(FIELD.multiply(x, x), INF) == FIELD.multiply(x, FIELD.multiply(x, INF))
    assert FIELD.hash("exponential", -INF) == 0
    assert np.isnan(FIELD.hash("exponential", NAN)).all()


def test_a_product_of_matrices_is_the_sum_of_products() -> None:
    left, right = numbers("left", 1, 4, 6), numbers("right", 1, 6, 5)
    left[0, 0, 2], left[0, 1, 3], left[0, 2, 1], right[0, 4, 0], right[0, 2, 3], right[0, 3, 4] = (
        OMEGA,
        np.nan,
        -OMEGA,
        OMEGA,
        0,
        0,
    )
    left[0, 3, 4] = 0
    products = FIELD.multiply(left[..., None], right[:, None])
    assert not differs(FIELD.matmul(left, right), FIELD.sum(products, (2,))).any()


def test_bits_of_infinities_are_read_back_and_order_them() -> None:
    x = np.array([-OMEGA, *np.sort(FIELD.order(numbers("x", 9))), OMEGA])
    x = np.concatenate([x[:1], FIELD.at_place(x[1:-1]), x[-1:], [np.nan]])
    positions = FIELD.positions(x, 2**31 - 1)
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(FIELD.at_positions(positions, 2**31 - 1), x, equal_nan=True)


ATTENTION = """
func.func @main(%s: tensor<4x8xf32>, %m: tensor<4x8xi1>, %v: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %lows = stablehlo.constant dense<0xFF800000> : tensor<4x8xf32>
  %safe = stablehlo.select %m, %s, %lows : tensor<4x8xi1>, tensor<4x8xf32>
  %max = stablehlo.reduce(%safe init: %low) applies stablehlo.maximum across dimensions = [1]
      : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %rows = stablehlo.broadcast_in_dim %max, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %apart = stablehlo.subtract %safe, %rows : tensor<4x8xf32>
  %exp = stablehlo.exponential %apart : tensor<4x8xf32>
  %kept = stablehlo.select %m, %exp, %zeros : tensor<4x8xi1>, tensor<4x8xf32>
  %sum = stablehlo.reduce(%kept init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  BODY
  return %out : tensor<4x3xf32>
}
"""

DIVIDED = """
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %share = stablehlo.divide %exp, %sums : tensor<4x8xf32>
  %weights = stablehlo.select %m, %share, %zeros : tensor<4x8xi1>, tensor<4x8xf32>
  %out = stablehlo.dot_general %weights, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
"""

MOVED = """
  %whole = stablehlo.dot_general %kept, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
  %out = stablehlo.divide %whole, %sums : tensor<4x3xf32>
"""

GUARDED = """
  %whole = stablehlo.dot_general %kept, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %none = stablehlo.constant dense<0.0> : tensor<4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<4xf32>
  %empty = stablehlo.compare EQ, %sum, %none : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %nonzero = stablehlo.select %empty, %ones, %sum : tensor<4xi1>, tensor<4xf32>
  %sums = stablehlo.broadcast_in_dim %nonzero, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
  %out = stablehlo.divide %whole, %sums : tensor<4x3xf32>
"""


def attention(body: str) -> ir.Module:
    return assembly.read(ATTENTION.replace("BODY", body), "attention.mlir", mlir.context())


def test_a_guard_in_place_of_a_select_is_no_difference() -> None:
    verdict = verify(attention(DIVIDED), attention(GUARDED))
    assert verdict.equal
    assert {LINES, NONE} <= set(verdict.kinds)


@pytest.mark.parametrize(
    "wrong",
    [
        MOVED,
        DIVIDED.replace("dot_general %weights", "dot_general %share"),
        GUARDED.replace("broadcast_in_dim %nonzero", "broadcast_in_dim %sum"),
    ],
    ids=["division moved", "select dropped", "guard removed"],
)
def test_a_row_without_any_key_is_told_from_nan(wrong: str) -> None:
    verdict = verify(attention(DIVIDED), attention(wrong), runs=1)
    assert verdict.kinds == (LINES,)
    assert not verdict.equal


def test_a_tensor_of_more_dimensions_than_numpy_has_is_one_diagnostic() -> None:
    shape = "1x" * 70
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.reshape %x : (tensor<4xf32>) -> tensor<{shape}4xf32>
      %1 = stablehlo.reshape %0 : (tensor<{shape}4xf32>) -> tensor<4xf32>
      return %1 : tensor<4xf32> }}"""
    module = assembly.read(text, "deep.mlir", mlir.context())
    with pytest.raises(MeshError, match=r"deep\.mlir:2.*71 dimensions, expected at most 31"):
        verify(module, module)


COMPARING = """func.func @main(%x: tensor<5xf32>) -> tensor<1xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %out = "stablehlo.reduce_window"(%x, %low) <{window_dimensions = array<i64: 5>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %greater = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %kept = stablehlo.select %greater, %a, %b : tensor<i1>, tensor<f32>
    stablehlo.return %kept : tensor<f32>
  }) : (tensor<5xf32>, tensor<f32>) -> tensor<1xf32>
  return %out : tensor<1xf32> }"""


@pytest.mark.parametrize("at", range(5))
def test_a_window_compares_its_elements_in_order(at: int) -> None:
    """NaN is greater than nothing and less than nothing, so what it hides depends on the order; XLA:CPU takes the first first."""
    program = open_program(assembly.read(COMPARING, "window.mlir", mlir.context()))
    order = FIELD.at_place(np.array([5.0, 4.0, 3.0, 2.0, 1.0]))
    order[at] = np.nan
    (found,) = program.evaluate(FIELD, [order], memory=10**9)
    assert differs(found, np.array([order[at + 1] if at < 4 else np.nan])).sum() == 0


SORTING = """func.func @main(%x: tensor<4x33xf32>) -> tensor<4x33xf32> {
  %0 = "stablehlo.sort"(%x) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %greater = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %greater : tensor<i1>
  }) : (tensor<4x33xf32>) -> tensor<4x33xf32>
  return %0 : tensor<4x33xf32> }"""


def test_a_comparator_without_a_place_for_nan_loses_no_element() -> None:
    program = open_program(assembly.read(SORTING, "sort.mlir", mlir.context()))
    x = np.repeat(numbers("x", 1, 33), 4, 0)
    x[:, ::5] = np.nan
    (found,) = program.evaluate(FIELD, [x], memory=10**9)
    assert np.array_equal(np.sort(found, 1), np.sort(x, 1), equal_nan=True)
    assert np.array_equal(found[:1].repeat(4, 0), found, equal_nan=True), "equal rows are sorted alike"
