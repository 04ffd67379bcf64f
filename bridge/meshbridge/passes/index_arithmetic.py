"""Integer arithmetic on `index` values, in `arith` operations alone: what LLVM's tools read as they stand, and what
`lower-collectives` has a form for. No value here is negative, so that the signed operations, which StableHLO has, will do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from meshbridge.mlir import ir


def constant(number: int) -> ir.Value:
    """`number` as an `index`."""
    index = ir.IndexType.get()
    return _value("arith.constant", index, [], {"value": ir.IntegerAttr.get(index, number)})


def binary(name: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """`arith.<name>` of two `index` values, neither of them negative."""
    return _value(f"arith.{name}", ir.IndexType.get(), [left, right], {})


def product(factors: Sequence[ir.Value]) -> ir.Value:
    """The product of one `index` or more."""
    return reduce(lambda left, right: binary("muli", left, right), factors)


def linearize(digits: Sequence[ir.Value], sizes: Sequence[ir.Value]) -> ir.Value:
    """The number that `digits` write, outermost first, in a system of the bases `sizes`: one digit or more."""
    number = digits[0]
    for digit, size in zip(digits[1:], sizes[1:], strict=True):
        number = binary("addi", binary("muli", number, size), digit)
    return number


def delinearize(number: ir.Value, sizes: Sequence[ir.Value], down_to: int) -> dict[int, ir.Value]:
    """The digits of `number` in a system of the bases `sizes`, from the innermost to place `down_to`, by place.

    The outermost digit is what is left, with no remainder taken: `number` is less than the product of `sizes`.
    """
    digits = {}
    for place in range(len(sizes) - 1, down_to - 1, -1):
        digits[place] = binary("remsi", number, sizes[place]) if place else number
        if place > down_to:
            number = binary("divsi", number, sizes[place])
    return digits


def _value(name: str, type_: ir.Type, operands: list[ir.Value], attributes: dict[str, ir.Attribute]) -> ir.Value:
    value: ir.Value = ir.Operation.create(name, [type_], operands, attributes).results[0]
    return value
