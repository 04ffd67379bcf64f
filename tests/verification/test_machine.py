"""Ops against what they say, on integers and small numbers where the field is the numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.verification.field import PRIMES, Array, Field
from meshbridge.verification.program import open_program

FIELD = Field(PRIMES[0], 9)


def run(body: str, *arguments: Array, types: str, result: str) -> Array:
    """The result `%r` of a body that reads `%0`, `%1`, … of these types."""
    listed = ", ".join(f"%{index}: {kind}" for index, kind in enumerate(types.split()))
    text = f"func.func @main({listed}) -> {result} {{\n{body}\nreturn %r : {result} }}".replace("%0", "%a").replace("%1", "%b")
    program = open_program(assembly.read(text, "op.mlir", mlir.context()))
    return program.evaluate(FIELD, arguments, memory=10**9)[0]


def elements(numbers: list[int]) -> Array:
    return FIELD.from_integers(np.array(numbers))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("divide", [3, -3, -3, 3, -1, -128]),
        ("remainder", [1, -1, 1, -1, 5, 0]),
        ("shift_left", [28, -28, 0, 0, 5, 0]),
        ("shift_right_arithmetic", [1, -2, 0, -1, 5, -1]),
        ("shift_right_logical", [1, 62, 0, 0, 5, 0]),
    ],
)
def test_integers_wrap_and_truncate(name: str, expected: list[int]) -> None:
    left, right = np.array([7, -7, 7, -7, 5, -128], np.int8), np.array([2, 2, -2, -2, 0, -1], np.int8)
    kind = "tensor<6xi8>"
    found = run(f"%r = stablehlo.{name} %0, %1 : {kind}", left, right, types=f"{kind} {kind}", result=kind)
    assert found.tolist() == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_sorts_are_stable(keys: list[int]) -> None:
    kind = f"tensor<{len(keys)}xi32>"
    body = f"""
    %s:2 = "stablehlo.sort"(%0, %1) <{{dimension = 0 : i64, is_stable = true}}> ({{
      ^bb0(%p: tensor<i32>, %q: tensor<i32>, %u: tensor<i32>, %v: tensor<i32>):
        %c = stablehlo.compare LT, %p, %q : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
    }}) : ({kind}, {kind}) -> ({kind}, {kind})
    %r = stablehlo.add %s#1, %s#1 : {kind}"""
    numbers = np.arange(len(keys), dtype=np.int32)
    found = run(body, np.array(keys, np.int32), numbers, types=f"{kind} {kind}", result=kind)
    assert (found // 2).tolist() == np.argsort(keys, kind="stable").tolist()


@given(st.lists(st.integers(-2, 3), min_size=3, max_size=3), st.lists(st.integers(-2, 3), min_size=3, max_size=3))
def test_pads_and_cuts(low: list[int], high: list[int]) -> None:
    sizes, gaps = (4, 3, 5), (0, 1, 2)
    shape = [a + (size - 1) * (gap + 1) + 1 + b for a, b, size, gap in zip(low, high, sizes, gaps, strict=True)]
    if min(shape) < 0:
        return
    x = np.arange(60, dtype=np.int32).reshape(sizes) + 1
    spread = np.zeros([(size - 1) * (gap + 1) + 1 for size, gap in zip(sizes, gaps, strict=True)], np.int32)
    spread[tuple(slice(None, None, gap + 1) for gap in gaps)] = x
    wide = np.pad(spread, [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)])
    cut = wide[tuple(slice(max(-a, 0), size - max(-b, 0)) for a, b, size in zip(low, high, wide.shape, strict=True))]
    result = f"tensor<{'x'.join(map(str, shape))}xi32>"
    body = f"""%c = stablehlo.constant dense<0> : tensor<i32>
    %r = "stablehlo.pad"(%0, %c) <{{edge_padding_low = array<i64: {", ".join(map(str, low))}>, edge_padding_high = array<i64:
        {", ".join(map(str, high))}>, interior_padding = array<i64: 0, 1, 2>}}> : (tensor<4x3x5xi32>, tensor<i32>) -> {result}"""
    assert np.array_equal(run(body, x, types="tensor<4x3x5xi32>", result=result), cut)


def test_slices_start_inside() -> None:
    body = """%r = "stablehlo.dynamic_slice"(%0, %1) <{slice_sizes = array<i64: 3>}>
      : (tensor<5xi32>, tensor<i32>) -> tensor<3xi32>"""
    for start, expected in ((-4, [0, 1, 2]), (1, [1, 2, 3]), (9, [2, 3, 4])):
        found = run(body, np.arange(5), np.array(start), types="tensor<5xi32> tensor<i32>", result="tensor<3xi32>")
        assert found.tolist() == expected


def test_convolution_of_integers() -> None:
    """Strides, paddings and both dilations, against a sum by hand."""
    body = """%r = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0],
      window = {stride = [2], pad = [[1, 2]], lhs_dilate = [2], rhs_dilate = [3]}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<1x4x6xf32>, tensor<2x2x2xf32>) -> tensor<1x2x6xf32>"""
    x, kernel = np.arange(24).reshape(1, 4, 6), np.arange(8).reshape(2, 2, 2) + 1
    spread = np.zeros((4, 14), np.int64)
    spread[:, 1:12:2] = x[0]
    expected = np.zeros((2, 6))
    for out, at, channel, tap in np.ndindex(2, 6, 2, 2):
        expected[out, at] += spread[2 * out + channel, 2 * at + 3 * tap] * kernel[out, channel, tap]
    arguments = elements(x.reshape(-1).tolist()).reshape(x.shape), elements(kernel.reshape(-1).tolist()).reshape(kernel.shape)
    found = run(body, *arguments, types="tensor<1x4x6xf32> tensor<2x2x2xf32>", result="tensor<1x2x6xf32>")
    assert np.array_equal(found[0], expected)


@given(st.lists(st.integers(-16, 16), min_size=1, max_size=6))
def test_small_powers_are_products(exponents: list[int]) -> None:
    kind = f"tensor<{len(exponents)}xf32>"
    base = FIELD.random("base", (len(exponents),))
    found = run(f"%r = stablehlo.power %0, %1 : {kind}", base, elements(exponents), types=f"{kind} {kind}", result=kind)
    for number, exponent, result in zip(base, exponents, found, strict=True):
        assert result == FIELD.integer(pow(int(number), exponent, FIELD.prime))


def test_roots_by_power_are_roots() -> None:
    kind = "tensor<1xf32>"
    x = FIELD.random("x", (1,))
    for exponent, body in ((0.5, "%r = stablehlo.sqrt %0"), (-0.5, "%r = stablehlo.rsqrt %0")):
        power = FIELD.from_floats(np.array([exponent]))
        found = run(f"%r = stablehlo.power %0, %1 : {kind}", x, power, types=f"{kind} {kind}", result=kind)
        assert found == run(f"{body} : {kind}", x, types=kind, result=kind)


def test_the_largest_come_in_their_order() -> None:
    body = "%v, %r = chlo.top_k(%0, k = 4) : tensor<6xi32> -> (tensor<4xi32>, tensor<4xi32>)"
    found = run(body, np.array([3, 5, 3, 5, 1, 3], np.int32), types="tensor<6xi32>", result="tensor<4xi32>")
    assert found.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(("reverse", "expected"), [("false", [1, 3, 6, 10]), ("true", [10, 9, 7, 4])])
def test_a_composite_scan_has_the_direction_that_it_says(reverse: str, expected: list[int]) -> None:
    """Its decomposition here does nothing of the kind."""
    if not mlir.context().is_registered_operation("chlo.scan"):
        pytest.skip("this jaxlib has no scan, and composites without regions")
    scalar, vector = "tensor<i32>", "tensor<4xi32>"
    text = f"""func.func @main(%x: {vector}, %s: {scalar}) -> {vector} {{
      %r:2 = "stablehlo.composite"(%x, %s) <{{name = "chlo.scan", decomposition = @other, composite_attributes = {{
          dimension = 0 : i64, is_reverse = {reverse}, operandSegmentSizes = array<i32: 1, 1>,
          resultSegmentSizes = array<i32: 1, 1>}}}}> ({{
        ^bb0(%e: {scalar}, %c: {scalar}):
          %t = stablehlo.add %e, %c : {scalar}
          stablehlo.return %t, %t : {scalar}, {scalar}
      }}) : ({vector}, {scalar}) -> ({vector}, {scalar})
      return %r#0 : {vector}
    }}
    func.func private @other(%x: {vector}, %s: {scalar}) -> ({vector}, {scalar}) {{ return %x, %s : {vector}, {scalar} }}"""
    program = open_program(assembly.read(text, "scan.mlir", mlir.context()))
    found = program.evaluate(FIELD, [np.array([1, 2, 3, 4], np.int32), np.int32(0)], memory=10**9)
    assert found[0].tolist() == expected
