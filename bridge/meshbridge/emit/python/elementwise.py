"""Writes elementwise ops as Python operators, or as functions of jnp and lax."""

from __future__ import annotations

from meshbridge.emit.python import literals
from meshbridge.emit.python.code import Code, call, infix, literal, method, prefix, tuple_of
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.mlir import ir

_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "and": "&", "or": "|", "xor": "^"}

_ON_BITS = {"add": "|", "multiply": "&", "subtract": "^"}
"""By arithmetic op: its operator on `i1`."""


@writes(*_OPERATORS)
def operator(op: ir.Operation, scope: Scope) -> Code:
    """An operator: `x + y`. Integers are divided by `lax.div`, which truncates as StableHLO does."""
    name = op.name.partition(".")[2]
    if name == "divide" and isinstance(element_of(op.results[0]), ir.IntegerType):
        return call("lax.div", *scope.operands(op))
    sign = _ON_BITS.get(name, _OPERATORS[name]) if is_bit(op.results[0]) else _OPERATORS[name]
    return scope.infix(op, sign)


def is_bit(value: ir.Value) -> bool:
    """True if a value has elements of type `i1`."""
    return str(element_of(value)) == "i1"


_COMPARED = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def direction_of(op: ir.Operation) -> str:
    """The direction of a comparison: `LT`, `EQ`, …"""
    return str(op.attributes["comparison_direction"]).rsplit(" ", 1)[-1].rstrip(">")


def is_total(op: ir.Operation) -> bool:
    """True if a comparison orders all floats, including NaNs and signed zeros."""
    return "compare_type" in op.attributes and "TOTALORDER" in str(op.attributes["compare_type"])


@writes("compare")
def compare(op: ir.Operation, scope: Scope) -> Code:
    """`x < y`; floats in their total order are compared as integers, by a function `ordered`."""
    if is_total(op) and literals.is_float_type(element_of(op.operands[0])):
        scope.script.helpers.add("ordered")
        lhs, rhs = (call("ordered", code) for code in scope.operands(op))
        return infix(lhs, _COMPARED[direction_of(op)], rhs)
    return scope.infix(op, _COMPARED[direction_of(op)])


@writes("select")
def select(op: ir.Operation, scope: Scope) -> Code:
    """`jnp.where`."""
    return call("jnp.where", *scope.broadcasting(op, typed=(1, 2)))


_BROADCASTING = {"maximum": "jnp.maximum", "minimum": "jnp.minimum"}

_FUNCTIONS = {
    "abs": "jnp.abs",
    "atan2": "lax.atan2",
    "cbrt": "lax.cbrt",
    "ceil": "jnp.ceil",
    "clamp": "lax.clamp",
    "complex": "lax.complex",
    "cosine": "jnp.cos",
    "count_leading_zeros": "lax.clz",
    "exponential": "jnp.exp",
    "exponential_minus_one": "jnp.expm1",
    "floor": "jnp.floor",
    "imag": "lax.imag",
    "is_finite": "jnp.isfinite",
    "log": "jnp.log",
    "log_plus_one": "jnp.log1p",
    "logistic": "lax.logistic",
    "popcnt": "lax.population_count",
    "real": "lax.real",
    "remainder": "lax.rem",
    "rsqrt": "lax.rsqrt",
    "shift_left": "lax.shift_left",
    "shift_right_arithmetic": "lax.shift_right_arithmetic",
    "shift_right_logical": "lax.shift_right_logical",
    "sign": "lax.sign",
    "sine": "jnp.sin",
    "sqrt": "jnp.sqrt",
    "tan": "jnp.tan",
    "tanh": "jnp.tanh",
}


@writes(*_BROADCASTING)
def extreme(op: ir.Operation, scope: Scope) -> Code:
    """`jnp.maximum`, `jnp.minimum`."""
    return call(_BROADCASTING[op.name.partition(".")[2]], *scope.broadcasting(op))


@writes(*_FUNCTIONS)
def function(op: ir.Operation, scope: Scope) -> Code:
    """The function of `jnp` or `lax` of that name."""
    operands = scope.operands(op)
    if op.name in ("stablehlo.imag", "stablehlo.real") and not isinstance(element_of(op.operands[0]), ir.ComplexType):
        return operands[0] if op.name == "stablehlo.real" else call("jnp.zeros_like", *operands)
    return call(_FUNCTIONS[op.name.partition(".")[2]], *operands)


@writes("power")
def power(op: ir.Operation, scope: Scope) -> Code:
    """`lax.pow`. JAX's power of integers differs from StableHLO's for negative exponents."""
    if isinstance(element_of(op.results[0]), ir.IntegerType):
        raise scope.error(op, "is a power of integers, which JAX has no function for, expected floats", "multiply repeatedly")
    return call("lax.pow", *scope.operands(op))


@writes("negate")
def negate(op: ir.Operation, scope: Scope) -> Code:
    """`-x`."""
    return prefix("-", scope.at(op.operands[0]))


@writes("not")
def invert(op: ir.Operation, scope: Scope) -> Code:
    """`~x`."""
    return prefix("~", scope.at(op.operands[0]))


_ROUNDING = {"round_nearest_afz": "AWAY_FROM_ZERO", "round_nearest_even": "TO_NEAREST_EVEN"}


@writes(*_ROUNDING)
def rounded(op: ir.Operation, scope: Scope) -> Code:
    """`lax.round`."""
    how = _ROUNDING[op.name.partition(".")[2]]
    return call("lax.round", scope.at(op.operands[0]), f"lax.RoundingMethod.{how}")


@writes("convert")
def convert(op: ir.Operation, scope: Scope) -> Code | None:
    """`x.astype`."""
    operand, result = op.operands[0], op.results[0]
    if element_of(operand) == element_of(result):
        operand_code = scope.written(operand)
        scope.define(result, operand_code.code, operand_code.loose, operand_code.loose_shape, number=operand_code.is_number)
        return None
    code = scope.short(operand)
    if isinstance(element_of(operand), ir.ComplexType) and not isinstance(element_of(result), ir.ComplexType):
        code = call("lax.real", code)
    return method(code, "astype", scope.dtype(result, op))


@writes("bitcast_convert")
def bitcast(op: ir.Operation, scope: Scope) -> Code:
    """`lax.bitcast_convert_type`, which adds or removes a last dimension as StableHLO does."""
    return call("lax.bitcast_convert_type", scope.at(op.operands[0]), scope.dtype(op.results[0], op))


@writes("reduce_precision")
def reduce_precision(op: ir.Operation, scope: Scope) -> Code:
    """`lax.reduce_precision`."""
    bits = [literal(int(ir.IntegerAttr(op.attributes[name]).value)) for name in ("exponent_bits", "mantissa_bits")]
    return call("lax.reduce_precision", scope.at(op.operands[0]), *bits)


@writes("optimization_barrier")
def barrier(op: ir.Operation, scope: Scope) -> Code:
    """`lax.optimization_barrier`."""
    operands = scope.operands(op)
    return call("lax.optimization_barrier", operands[0] if len(operands) == 1 else tuple_of(operands))


@writes("map")
def mapped(op: ir.Operation, scope: Scope) -> Code:
    """A function of scalars, mapped over all elements by `jax.vmap`."""
    inner = scope.function(op.regions[0].blocks[0], "each")
    flat = [method(scope.short(operand), "reshape", "-1") for operand in op.operands]
    return method(call(f"jax.vmap({inner})", *flat), "reshape", literal(tuple(shape_of(op.results[0]))))


MOST_NUMBERS = 4096
"""The most numbers of a constant that is written out."""

_SMALL = range(-(2**31), 2**31)
"""Integers that JAX accepts as Python numbers beside arrays of any integer type."""


@writes("constant")
def constant(op: ir.Operation, scope: Scope) -> Code | None:
    """A number if all elements are equal, else `jnp.array` of a list."""
    result = op.results[0]
    shape, dtype = tuple(shape_of(result)), scope.dtype(result, op)
    number = literals.splat(op)
    if number is not None:
        code = literals.number_code(number)
        full = call("jnp.full", literal(shape), code, dtype) if shape else call(str(dtype), code)
        is_number = is_bit(result) or not isinstance(element_of(result), ir.IntegerType) or _fits(int(number), element_of(result))
        scope.define(result, full, code if is_number else call(str(dtype), code), number=is_number)
        return None
    numbers = literals.numbers(op)
    if numbers.size > MOST_NUMBERS:
        message = f"is a constant of {numbers.size} numbers, expected at most {MOST_NUMBERS} in a file that people read"
        raise scope.error(op, message, "pass it to the function as an argument")
    if not numbers.size:
        return call("jnp.zeros", literal(shape), dtype)
    return call("jnp.array", literals.nested(numbers), dtype)


def _fits(number: int, element: ir.Type) -> bool:
    width = int(ir.IntegerType(element).width)
    return number in _SMALL and (width >= 8 or number >= 0)
