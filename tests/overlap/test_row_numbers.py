"""Which rows the trips of a loop write."""

from __future__ import annotations

import pytest

from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, find, ir
from meshbridge.overlap.row_numbers import row_numbers

LOOP = """
func.func @main(%x: tensor<T>) -> tensor<T> {
  %start = stablehlo.constant dense<0> : tensor<T>
  %zero = stablehlo.constant dense<0> : tensor<T>
  %one = stablehlo.constant dense<1> : tensor<T>
  %three = stablehlo.constant dense<3> : tensor<T>
  %four = stablehlo.constant dense<4> : tensor<T>
  %0:2 = stablehlo.while(%i = %start, %a = %x) : tensor<T>, tensor<T>
    cond {
      %1 = stablehlo.compare LT, %i, %four : (tensor<T>, tensor<T>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      INDEX
      %next = stablehlo.add %i, %one : tensor<T>
      stablehlo.return %next, %row : tensor<T>, tensor<T>
    }
  return %0#1 : tensor<T>
}
"""

BACKWARDS = "%row = stablehlo.subtract %three, %i : tensor<T>"
WRAPPED = """
      %left = stablehlo.subtract %i, %three : tensor<T>
      %is = stablehlo.compare LT, %left, %zero : (tensor<T>, tensor<T>) -> tensor<i1>
      %up = stablehlo.add %left, %four : tensor<T>
      %row = stablehlo.select %is, %up, %left : tensor<i1>, tensor<T>"""


@pytest.mark.parametrize(
    ("element", "index", "expected"),
    [
        ("i32", "%row = stablehlo.add %i, %zero : tensor<T>", [0, 1, 2, 3]),
        ("i32", BACKWARDS, [3, 2, 1, 0]),
        ("ui32", BACKWARDS, [3, 2, 1, 0]),
        ("i32", WRAPPED, [1, 2, 3, 0]),
        ("ui32", WRAPPED, None),
        ("i32", "%row = stablehlo.minimum %i, %one : tensor<T>", [0, 1, 1, 1]),
        ("i32", "%row = stablehlo.add %a, %i : tensor<T>", None),
        ("i32", "%row = stablehlo.remainder %i, %three : tensor<T>", None),
    ],
)
def test_rows(element: str, index: str, expected: list[int] | None) -> None:
    module = read(LOOP.replace("INDEX", index).replace("<T>", f"<{element}>"), "loop.mlir", context())
    (loop,) = find(module.operation, ["stablehlo.while"])
    written: ir.Value = list(loop.regions[1].blocks[0].operations)[-1].operands[1]
    assert row_numbers(loop, written, 4) == expected


@pytest.mark.parametrize(("limit", "most", "expected"), [(4, 3, None), (0, 4, None), (1, 4, [0]), (2**31 - 1, 4, None)])
def test_only_loops_of_few_trips_are_counted_out(limit: int, most: int, expected: list[int] | None) -> None:
    text = LOOP.replace("INDEX", "%row = stablehlo.add %i, %zero : tensor<T>").replace("<T>", "<i32>")
    module = read(text.replace("dense<4>", f"dense<{limit}>"), "loop.mlir", context())
    (loop,) = find(module.operation, ["stablehlo.while"])
    written: ir.Value = list(loop.regions[1].blocks[0].operations)[-1].operands[1]
    assert row_numbers(loop, written, most) == expected
