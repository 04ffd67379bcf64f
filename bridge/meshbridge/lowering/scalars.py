"""Lowers `arith` and `tensor` operations on scalars to StableHLO on rank-0 tensors.

XLA has no scalars and no `index`. A scalar of type T becomes `tensor<T>`; `index`, also as an element type, becomes i32, the type
of all indices here. Other operations on scalars are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from meshbridge.ir.builder import Builder, dense, shape_of, tensor
from meshbridge.ir.mlir import OpError, ir

Constants = dict[ir.Value, int]

ELEMENTWISE = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.subf": "subtract",
    "arith.subi": "subtract",
    "arith.mulf": "multiply",
    "arith.muli": "multiply",
    "arith.divf": "divide",
    "arith.divsi": "divide",
    "arith.remsi": "remainder",
    "arith.minsi": "minimum",
    "arith.maxsi": "maximum",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
}
"""Scalar operations with the meaning of a StableHLO op, on floats and on signed integers."""

CASTS = frozenset({"arith.index_cast", "arith.extsi", "arith.trunci"})

COMPARISONS = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE"}
"""`arith.cmpi` predicates; the unsigned ones (6 to 9) have no counterpart on signless integers."""

FORMS: dict[str, Callable[[ir.Operation, Builder, Constants], ir.Value]] = {}
"""By operation name: the function that builds its replacement."""


def is_scalar(type_: ir.Type) -> bool:
    """True if XLA needs a rank-0 tensor for a value of this type."""
    return isinstance(type_, ir.IndexType | ir.IntegerType | ir.FloatType)


def needs_form(type_: ir.Type) -> bool:
    """True if XLA needs another type for this one: for a scalar, or a tensor of indices."""
    return is_scalar(type_) or (isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.IndexType))


def without_index(element: ir.Type) -> ir.Type:
    """The element type that XLA uses for `element`."""
    return ir.IntegerType.get_signless(32) if isinstance(element, ir.IndexType) else element


def tensor_for(type_: ir.Type) -> ir.Type:
    """The tensor type of a scalar type, or of a tensor of indices."""
    if isinstance(type_, ir.RankedTensorType):
        return tensor(list(type_.shape), without_index(type_.element_type))
    return tensor([], without_index(type_))


def lower_scalar(op: ir.Operation, constants: Constants) -> bool:
    """Replaces `op`, one of FORMS, if it computes on scalars; returns False if it does not."""
    if not (needs_form(op.results[0].type) or op.name in _TENSOR_MAKERS):
        return False
    unknown = [needs_form(operand.type) for operand in op.operands]
    if unknown and all(unknown):  # computed without any mesh operation
        return False
    if any(unknown):
        raise OpError(op, _NO_FORM)
    check_users(op.results)
    value = FORMS[op.name](op, Builder.before(op), constants)
    op.results[0].replace_all_uses_with(value)
    op.erase()
    return True


_TENSOR_MAKERS = frozenset({"arith.index_cast", "tensor.from_elements", "tensor.splat"})
"""Operations that build tensors of scalars or of indices."""

_NO_FORM = "computes with a scalar, and has no form in StableHLO that could"


def check_users(values: Iterable[ir.Value]) -> None:
    """Raises OpError if a user of a scalar among `values` has no form on tensors."""
    for value in values:
        if needs_form(value.type):
            for use in value.uses:
                user = use.owner.operation
                if not (user.name in FORMS or user.name == "func.return" or user.name.startswith("mesh.")):
                    raise OpError(user, _NO_FORM)


def _constant(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    scalar, attr = op.results[0].type, op.attributes["value"]
    if isinstance(scalar, ir.RankedTensorType):
        numbers = np.array(ir.DenseElementsAttr(attr)).reshape(list(scalar.shape))
        if numbers.size and not -(2**31) <= int(numbers.min()) <= int(numbers.max()) < 2**31:
            raise OpError(op, "has an index beyond 32 bits; indices have 32 bits")
        return builder.constant(tensor_for(scalar), dense(numbers.astype(np.int32)))
    type_ = ir.RankedTensorType(tensor_for(scalar))
    number = None if isinstance(scalar, ir.FloatType) else int(ir.IntegerAttr(attr).value)
    if isinstance(scalar, ir.IndexType) and number is not None:
        if not -(2**31) <= number < 2**31:
            raise OpError(op, f"is {number}; indices have 32 bits")
        attr = ir.IntegerAttr.get(type_.element_type, number)
    value = builder.constant(type_, ir.DenseElementsAttr.get_splat(type_, attr))
    if number is not None:
        constants[value] = number
    return value


def _compare(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    direction = COMPARISONS.get(int(ir.IntegerAttr(op.attributes["predicate"]).value))
    if direction is None:
        raise OpError(op, "compares unsigned; only signed comparisons have a form in StableHLO here")
    return builder.compare(direction, *op.operands)


def _cast(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    _refuse_bits(op)
    operand = op.operands[0]
    value = builder.convert(operand, ir.RankedTensorType(tensor_for(op.results[0].type)).element_type)
    if operand in constants:
        constants[value] = constants[operand]
    return value


def _elementwise(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    if op.name not in _BITWISE:
        _refuse_bits(op)
    return builder.elementwise(ELEMENTWISE[op.name], *op.operands)


_BITWISE = frozenset({"arith.andi", "arith.ori", "arith.xori"})


def _refuse_bits(op: ir.Operation) -> None:
    """Arithmetic on i1 is modulo 2 and signed in `arith`, and Boolean in StableHLO. Raises OpError there."""
    types = [str(value.type) for value in (*op.operands, *op.results)]
    if "tensor<i1>" in types or "i1" in types:
        raise OpError(op, "computes with i1 as with a number, which has no form in StableHLO")


def _select(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    return builder.select(*op.operands)


def _extract(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    """A slice of one element at run-time indices."""
    source, *indices = op.operands
    if indices:
        source = builder.dynamic_cut(source, indices, [1] * len(indices))
    return builder.reshape(source, [])


def _from_elements(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    result = ir.RankedTensorType(op.results[0].type)
    if not len(op.operands):
        raise OpError(op, "makes a tensor of no elements")
    whole = builder.concatenate([builder.reshape(value, [1]) for value in op.operands], 0)
    return builder.reshape(whole, list(result.shape))


def _splat(op: ir.Operation, builder: Builder, constants: Constants) -> ir.Value:
    return builder.broadcast(op.operands[0], shape_of(op.results[0]))


FORMS |= dict.fromkeys(ELEMENTWISE, _elementwise) | dict.fromkeys(CASTS, _cast)
FORMS |= {
    "arith.constant": _constant,
    "arith.cmpi": _compare,
    "arith.select": _select,
    "tensor.extract": _extract,
    "tensor.from_elements": _from_elements,
    "tensor.splat": _splat,
}


def retype_arguments(function: ir.Operation) -> None:
    """Makes scalar arguments of a function rank-0 tensors."""
    for block in list(function.regions[0])[:1]:
        check_users(block.arguments)
        for argument in block.arguments:
            if needs_form(argument.type):
                argument.set_type(tensor_for(argument.type))


def retype_signature(function: ir.Operation) -> None:
    """Updates the function's type to those of its arguments and returned values."""
    if not len(list(function.regions[0])):
        return
    entry = function.regions[0].blocks[0]
    returned = list(entry.operations)[-1].operation.operands
    type_ = ir.FunctionType.get([argument.type for argument in entry.arguments], [value.type for value in returned])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
