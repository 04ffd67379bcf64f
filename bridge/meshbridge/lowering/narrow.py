"""Elements of two bits travel as bytes: XLA on CPU gathers packed ones wrongly, and writes past the end of what it gathers."""

from __future__ import annotations

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir


def widen(op: ir.Operation) -> None:
    """Has a collective whose operands or results have elements of two bits work on bytes, between conversions."""
    for index, operand in enumerate(op.operands):
        if is_narrow(operand):
            emit = Builder.before(op)
            op.operands[index] = emit.convert(operand, _byte(operand))
    for result in op.results:
        if is_narrow(result):
            emit = Builder.after(op)
            element = element_of(result)
            result.set_type(tensor(shape_of(result), _byte(result)))
            back = emit.op("convert", tensor(shape_of(result), element), [result])
            result.replace_all_uses_except(back.results[0], back)


def is_narrow(value: ir.Value) -> bool:
    """Whether the elements of `value` have two bits."""
    element = element_of(value) if isinstance(value.type, ir.RankedTensorType) else None
    return isinstance(element, ir.IntegerType) and element.width == 2


def _byte(value: ir.Value) -> ir.Type:
    unsigned = ir.IntegerType(element_of(value)).is_unsigned
    return ir.IntegerType.get_unsigned(8) if unsigned else ir.IntegerType.get_signless(8)
