"""Sends two-bit elements as bytes: XLA:CPU gathers packed elements wrongly, and writes past the end of the result."""

from __future__ import annotations

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir


def widen(op: ir.Operation) -> None:
    """Converts two-bit operands of a collective to bytes, and its results back."""
    for index, operand in enumerate(op.operands):
        if is_narrow(operand):
            builder = Builder.before(op)
            op.operands[index] = builder.convert(operand, _byte(operand))
    for result in op.results:
        if is_narrow(result):
            builder = Builder.after(op)
            element = element_of(result)
            result.set_type(tensor(shape_of(result), _byte(result)))
            back = builder.op("convert", tensor(shape_of(result), element), [result])
            result.replace_all_uses_except(back.results[0], back)


def is_narrow(value: ir.Value) -> bool:
    """True if the elements of `value` have two bits."""
    element = element_of(value) if isinstance(value.type, ir.RankedTensorType) else None
    return isinstance(element, ir.IntegerType) and element.width == 2


def _byte(value: ir.Value) -> ir.Type:
    unsigned = ir.IntegerType(element_of(value)).is_unsigned
    return ir.IntegerType.get_unsigned(8) if unsigned else ir.IntegerType.get_signless(8)
