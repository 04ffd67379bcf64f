"""Index arithmetic: `arith` and `tensor` operations on scalars as StableHLO on rank-0 tensors.

XLA knows no scalars and no `index`. A scalar of type T becomes `tensor<T>`, and `index`, also as the element of a tensor, becomes
i32, the type of all indices here. What is not in the table is refused where it uses one.
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
"""Scalar operations that mean what StableHLO's mean, on floats and on signed integers."""

CASTS = frozenset({"arith.index_cast", "arith.extsi", "arith.trunci"})

COMPARISONS = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE"}
"""`arith.cmpi` predicates; the unsigned ones (6 to 9) have no counterpart on signless integers."""

FORMS: dict[str, Callable[[ir.Operation, Builder, Constants], ir.Value]] = {}
"""Operation name to what writes its replacement."""


def is_scalar(type_: ir.Type) -> bool:
    """Whether XLA needs a rank-0 tensor in place of a value of this type."""
    return isinstance(type_, ir.IndexType | ir.IntegerType | ir.FloatType)


def needs_form(type_: ir.Type) -> bool:
    """Whether XLA needs another type in place of this one: of a scalar, or of a tensor of indices."""
    return is_scalar(type_) or (isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.IndexType))


def without_index(element: ir.Type) -> ir.Type:
    """The element type in which XLA holds `element`."""
    return ir.IntegerType.get_signless(32) if isinstance(element, ir.IndexType) else element


def tensor_for(type_: ir.Type) -> ir.Type:
    """The tensor type of a scalar type, or of a tensor of indices."""
    if isinstance(type_, ir.RankedTensorType):
        return tensor(list(type_.shape), without_index(type_.element_type))
    return tensor([], without_index(type_))


def lower_scalar(op: ir.Operation, constants: Constants) -> bool:
    """Replaces `op`, which FORMS names, if it computes on scalars; says whether it did."""
    if not (needs_form(op.results[0].type) or op.name in _MAKERS):
        return False
    unknown = [needs_form(operand.type) for operand in op.operands]
    if unknown and all(unknown):  # from operations that no mesh operation has a part in
        return False
    if any(unknown):
        raise OpError(op, _NO_FORM)
    check_users(op.results)
    value = FORMS[op.name](op, Builder.before(op), constants)
    op.results[0].replace_all_uses_with(value)
    op.erase()
    return True


_MAKERS = frozenset({"arith.index_cast", "tensor.from_elements", "tensor.splat"})
"""What makes tensors of scalars, or of indices."""

_NO_FORM = "computes with a scalar, and has no form in StableHLO that could"


def check_users(values: Iterable[ir.Value]) -> None:
    """Raises OpError for a user of a scalar among `values` that has no form on tensors."""
    for value in values:
        if needs_form(value.type):
            for use in value.uses:
                user = use.owner.operation
                if not (user.name in FORMS or user.name == "func.return" or user.name.startswith("mesh.")):
                    raise OpError(user, _NO_FORM)


def _constant(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    scalar, attr = op.results[0].type, op.attributes["value"]
    if isinstance(scalar, ir.RankedTensorType):
        numbers = np.array(ir.DenseElementsAttr(attr)).reshape(list(scalar.shape))
        if numbers.size and not -(2**31) <= int(numbers.min()) <= int(numbers.max()) < 2**31:
            raise OpError(op, "has an index beyond 32 bits; indices have 32 bits")
        return emit.constant(tensor_for(scalar), dense(numbers.astype(np.int32)))
    type_ = ir.RankedTensorType(tensor_for(scalar))
    number = None if isinstance(scalar, ir.FloatType) else int(ir.IntegerAttr(attr).value)
    if isinstance(scalar, ir.IndexType) and number is not None:
        if not -(2**31) <= number < 2**31:
            raise OpError(op, f"is {number}; indices have 32 bits")
        attr = ir.IntegerAttr.get(type_.element_type, number)
    value = emit.constant(type_, ir.DenseElementsAttr.get_splat(type_, attr))
    if number is not None:
        constants[value] = number
    return value


def _compare(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    direction = COMPARISONS.get(int(ir.IntegerAttr(op.attributes["predicate"]).value))
    if direction is None:
        raise OpError(op, "compares unsigned; only signed comparisons have a form in StableHLO here")
    return emit.compare(direction, *op.operands)


def _cast(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    _refuse_bits(op)
    operand = op.operands[0]
    value = emit.convert(operand, ir.RankedTensorType(tensor_for(op.results[0].type)).element_type)
    if operand in constants:
        constants[value] = constants[operand]
    return value


def _elementwise(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    if op.name not in _BITWISE:
        _refuse_bits(op)
    return emit.elementwise(ELEMENTWISE[op.name], *op.operands)


_BITWISE = frozenset({"arith.andi", "arith.ori", "arith.xori"})


def _refuse_bits(op: ir.Operation) -> None:
    """Arithmetic on i1 is modulo 2 and signed in `arith`, and Boolean in StableHLO. Raises OpError there."""
    types = [str(value.type) for value in (*op.operands, *op.results)]
    if "tensor<i1>" in types or "i1" in types:
        raise OpError(op, "computes with i1 as with a number, which has no form in StableHLO")


def _select(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    return emit.select(*op.operands)


def _extract(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    """A slice of one element at run-time indices."""
    source, *indices = op.operands
    if indices:
        source = emit.dynamic_cut(source, indices, [1] * len(indices))
    return emit.reshape(source, [])


def _from_elements(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    result = ir.RankedTensorType(op.results[0].type)
    if not len(op.operands):
        raise OpError(op, "makes a tensor of no elements")
    whole = emit.concatenate([emit.reshape(value, [1]) for value in op.operands], 0)
    return emit.reshape(whole, list(result.shape))


def _splat(op: ir.Operation, emit: Builder, constants: Constants) -> ir.Value:
    return emit.broadcast(op.operands[0], shape_of(op.results[0]))


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
    """Scalar arguments of a function become rank-0 tensors."""
    for block in list(function.regions[0])[:1]:
        check_users(block.arguments)
        for argument in block.arguments:
            if needs_form(argument.type):
                argument.set_type(tensor_for(argument.type))


def retype_signature(function: ir.Operation) -> None:
    """Writes the types of arguments and returned values into the function's type."""
    if not len(list(function.regions[0])):
        return
    entry = function.regions[0].blocks[0]
    returned = list(entry.operations)[-1].operation.operands
    type_ = ir.FunctionType.get([each.type for each in entry.arguments], [each.type for each in returned])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
