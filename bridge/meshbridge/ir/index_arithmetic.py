"""Integer arithmetic on `index` values, in `arith` operations alone, which LLVM's tools read.

An index is a static number or a value. Static arithmetic is computed here; the remaining numbers become constants at the top of
the block, one for each number, like those of MLIR's own folding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from meshbridge.ir.mlir import ir

Index = int | ir.Value

_KNOWN: dict[str, Callable[[int, int], int]] = {
    "addi": lambda left, right: left + right,
    "muli": lambda left, right: left * right,
    "divsi": lambda left, right: left // right,
    "divui": lambda left, right: left // right,
    "remsi": lambda left, right: left % right,
    "remui": lambda left, right: left % right,
}
"""The operations on static numbers; none of these is negative."""

_NEUTRAL = {"addi": 0, "muli": 1, "divsi": 1, "divui": 1}
"""The right operand that leaves the left one unchanged; for commutative operations, also the left one."""


class Arithmetic:
    """Computes indices at the current insertion point. One object serves a whole pass: blocks share constants."""

    def __init__(self) -> None:
        self._constants: dict[tuple[ir.Block, int], ir.Value] = {}

    def value(self, index: Index) -> ir.Value:
        """`index` as a value."""
        if not isinstance(index, int):
            return index
        block = ir.InsertionPoint.current.block
        value = self._constants.get((block, index))
        if value is None:
            type_ = ir.IndexType.get()
            attributes: dict[str, ir.Attribute] = {"value": ir.IntegerAttr.get(type_, index)}
            constant = ir.Operation.create("arith.constant", [type_], [], attributes, ip=ir.InsertionPoint.at_block_begin(block))
            value = self._constants[block, index] = constant.results[0]
        return value

    def binary(self, name: str, left: Index, right: Index) -> Index:
        """`arith.<name>` of two indices, neither of them negative."""
        if isinstance(left, int) and isinstance(right, int):
            return _KNOWN[name](left, right)
        if isinstance(right, int) and _NEUTRAL.get(name) == right:
            return left
        if name in ("addi", "muli") and isinstance(left, int) and _NEUTRAL[name] == left:
            return right
        operands = [self.value(left), self.value(right)]
        value: ir.Value = ir.Operation.create(f"arith.{name}", [ir.IndexType.get()], operands).results[0]
        return value

    def product(self, factors: Sequence[Index]) -> Index:
        """The product of one index or more."""
        return reduce(lambda left, right: self.binary("muli", left, right), factors)

    def linearize(self, digits: Sequence[Index], sizes: Sequence[Index]) -> Index:
        """The number with the `digits`, outermost first, in the mixed radix `sizes`: one digit or more."""
        number = digits[0]
        for digit, size in zip(digits[1:], sizes[1:], strict=True):
            number = self.binary("addi", self.binary("muli", number, size), digit)
        return number

    def delinearize(self, number: Index, sizes: Sequence[Index], down_to: int) -> dict[int, Index]:
        """The digits of `number` in the mixed radix `sizes`, from the innermost to position `down_to`, by position.

        The outermost digit needs no remainder: `number` is less than the product of `sizes`. StableHLO's signed operations
        suffice: nothing here is negative.
        """
        digits = {}
        for position in range(len(sizes) - 1, down_to - 1, -1):
            digits[position] = self.binary("remsi", number, sizes[position]) if position else number
            if position > down_to:
                number = self.binary("divsi", number, sizes[position])
        return digits
