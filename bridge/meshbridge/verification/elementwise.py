"""Elementwise ops: those of a ring are the field's, integers wrap around, every other function is a keyed hash.

Identities that legalizations use hold: rsqrt, logistic, tan, expm1, log1p and small powers are expressed by other functions. A
widening conversion is the identity; a narrowing one is a hash.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification import narrow_bits
from meshbridge.verification.bits import bits_of, from_bits, same_bits
from meshbridge.verification.field import Array, Field
from meshbridge.verification.machine import RULES, Evaluator, dtype_of, element_of, evaluates, is_complex, is_float, width_of
from meshbridge.verification.narrow_bits import narrow_width

SMALL_POWER = 16
"""Powers with exponents up to this magnitude are products."""


def wrap(numbers: Array, element: ir.Type) -> Array:
    """Integers of fewer than 8 bits as their storage holds them."""
    width = width_of(element)
    if width >= 8 or width == 1:
        return numbers
    return cut_bits(numbers, width, signed=not ir.IntegerType(element).is_unsigned)


def cut_bits(numbers: Array, width: int, *, signed: bool) -> Array:
    """The lowest bits of integers as integers."""
    low_bits = numbers & ((1 << width) - 1)
    return np.where(low_bits >= 1 << (width - 1), low_bits - (1 << width), low_bits) if signed else low_bits


Binary = Callable[[Field, Array, Array], Array]


def _divide_integers(left: Array, right: Array) -> Array:
    safe = np.where(right == 0, 1, right).astype(right.dtype)
    if left.dtype.kind == "u":
        return np.where(right == 0, np.iinfo(left.dtype).max, left // safe).astype(left.dtype)
    quotient = left // safe
    quotient = quotient + ((left % safe != 0) & ((left < 0) != (safe < 0)))
    return np.where(right == 0, -1, quotient).astype(left.dtype)


def _remainder_integers(left: Array, right: Array) -> Array:
    safe = np.where(right == 0, 1, right).astype(right.dtype)
    return np.where(right == 0, left, np.fmod(left, safe)).astype(left.dtype)


def _power_integers(base: Array, exponent: Array) -> Array:
    base, exponent = np.broadcast_arrays(base, exponent)
    result, square, remaining = np.ones_like(base), base.copy(), np.maximum(exponent, 0).astype(np.int64)
    while remaining.any():
        result = np.where(remaining & 1, result * square, result).astype(base.dtype)
        square, remaining = square * square, remaining >> 1
    inverted = np.where(base == 1, 1, np.where(base == -1, np.where(exponent % 2, -1, 1), 0))
    return np.where(exponent < 0, inverted, result).astype(base.dtype)


COMMUTATIVE = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""What these ops do to integers, in whatever order."""

INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    **COMMUTATIVE,
    "subtract": np.subtract,
    "divide": _divide_integers,
    "remainder": _remainder_integers,
    "power": _power_integers,
}

BOOLEAN: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.logical_or,
    "multiply": np.logical_and,
    "maximum": np.logical_or,
    "minimum": np.logical_and,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _power(field: Field, base: Array, exponent: Array) -> Array:
    """A product for small integer exponents, x^(1/2) = sqrt(x) and x^(-1/2) = rsqrt(x), a hash for others."""
    if base.dtype.kind == "c":
        return field.hash_complex("power", base, exponent)
    result, half = field.hash("power", base, exponent), _half(field)
    for value in np.unique(exponent):
        if abs(value) <= SMALL_POWER:
            exact = field.power(base, int(abs(value)))
        elif abs(value) == abs(half):
            exact = field.hash("sqrt", base)
        else:
            continue
        inverted = value == -half if abs(value) == abs(half) else value < 0
        result = np.where(exponent == value, field.inverse(exact) if inverted else exact, result)
    return result


def _half(field: Field) -> float:
    return field.integer(pow(2, -1, field.prime))


FLOAT: dict[str, Binary] = {
    "add": Field.add,
    "subtract": Field.subtract,
    "multiply": Field.multiply,
    "divide": Field.divide,
    "maximum": Field.maximum,
    "minimum": Field.minimum,
    "power": _power,
    "remainder": lambda field, left, right: field.hash("remainder", left, right),
    "atan2": lambda field, left, right: (field.hash_complex if left.dtype.kind == "c" else field.hash)("atan2", left, right),
}


def apply_binary(field: Field, name: str, left: Array, right: Array, element: ir.Type) -> Array | None:
    """Applies a StableHLO op of two operands, named without its dialect; None if the element type has no such op."""
    if left.dtype.kind in "fc":
        function = FLOAT.get(name)
        return function(field, left, right) if function else None
    if left.dtype == np.bool_:
        chosen = BOOLEAN.get(name)
        return chosen(left, right) if chosen else None
    with np.errstate(over="ignore"):
        exact = INTEGER.get(name)
        return wrap(exact(left, right), element) if exact else None


def _binary(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Two operands, combined elementwise."""
    lhs, rhs = operands
    result = apply_binary(machine.field, op.name.split(".")[1], lhs, rhs, element_of(op.results[0]))
    if result is None:
        raise OpError(op, f"has no exact evaluation on elements of type {element_of(op.results[0])}")
    return [result]


evaluates(*(f"stablehlo.{name}" for name in {*INTEGER, *FLOAT}))(_binary)

OPAQUE = (
    *("cbrt", "ceil", "cosine", "exponential", "floor", "log", "round_nearest_afz", "round_nearest_even", "sine", "sqrt"),
    "tanh",
)
"""Functions of StableHLO that are hashes."""

OPAQUE_CHLO = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj_", "cosh", "digamma", "erf", "erf_inv", "erfc"),
    *("lgamma", "next_after", "polygamma", "sinh", "zeta"),
)
"""Functions of CHLO that are hashes, and that neither side legalizes."""


def opaque(field: Field, name: str, *operands: Array) -> Array:
    """A hash with real or complex results, as the operands are."""
    return field.hash_complex(name, *operands) if operands[0].dtype.kind == "c" else field.hash(name, *operands)


def _opaque(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A function known only by its name."""
    return [opaque(machine.field, op.name.split(".")[1], *operands)]


OPAQUE_MHLO = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "sinh")
"""CHLO functions that HLO has too: its text is read as MHLO where StableHLO has no op."""

evaluates(
    *(f"stablehlo.{name}" for name in OPAQUE),
    *(f"chlo.{name}" for name in OPAQUE_CHLO),
    *(f"mhlo.{name}" for name in OPAQUE_MHLO),
)(_opaque)


def _one_more(field: Field, numbers: Array, sign: int = 1) -> Array:
    return field.reduce(numbers + sign)


UNARY: dict[str, Callable[[Field, Array], Array]] = {
    "rsqrt": lambda field, x: field.inverse(opaque(field, "sqrt", x)),
    "exponential_minus_one": lambda field, x: _one_more(field, opaque(field, "exponential", x), -1),
    "log_plus_one": lambda field, x: opaque(field, "log", _one_more(field, x)),
    "logistic": lambda field, x: field.inverse(_one_more(field, opaque(field, "exponential", -x))),
    "tan": lambda field, x: field.divide(opaque(field, "sine", x), opaque(field, "cosine", x)),
}


def _unary(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A function expressed by others."""
    return [UNARY[op.name.split(".")[1]](machine.field, operands[0])]


evaluates(*(f"stablehlo.{name}" for name in UNARY))(_unary)
RULES["chlo.tan"] = _unary


@evaluates("chlo.square")
def square(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """x x."""
    return [machine.field.multiply(operands[0], operands[0])]


@evaluates("chlo.conj")
def conjugate(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The complex conjugate."""
    return [operands[0].conj()]


@evaluates("stablehlo.negate")
def negate(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """-x; integers wrap around."""
    return [wrap(np.negative(operands[0]), element_of(op.results[0]))]


@evaluates("stablehlo.abs")
def absolute(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """x or -x, whichever comes later in the order; of a complex number, the root of its norm."""
    x, field = operands[0], machine.field
    if x.dtype.kind == "c":
        return [field.hash("sqrt", field.reduce(field.reduce(x.real**2) + field.reduce(x.imag**2)))]
    if x.dtype.kind == "f":
        return [x * field.sign(x)]
    return [wrap(np.abs(x), element_of(op.results[0]))]


@evaluates("stablehlo.sign")
def sign(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """-1, 0 or 1 by the order; a complex number over its magnitude."""
    x, field = operands[0], machine.field
    if x.dtype.kind == "c":
        return [field.divide(x, absolute(machine, op, operands)[0])]
    return [field.sign(x) if x.dtype.kind == "f" else np.sign(x)]


@evaluates("stablehlo.not")
def invert(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Inverts all bits."""
    return [wrap(np.invert(operands[0]), element_of(op.results[0]))]


@evaluates("stablehlo.is_finite")
def is_finite(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Neither an infinity nor NaN."""
    return [machine.field.is_finite(operands[0])]


SHIFTS = {"shift_left": np.left_shift, "shift_right_logical": np.right_shift, "shift_right_arithmetic": np.right_shift}


@evaluates(*(f"stablehlo.{name}" for name in SHIFTS))
def shift(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A shift by the width or more leaves only the sign of an arithmetic shift."""
    element, name = element_of(op.results[0]), op.name.split(".")[1]
    width, (number, by) = width_of(element), operands
    kind, size = dtype_of(element), dtype_of(element).itemsize
    if name == "shift_right_logical":
        number = number.view(f"u{size}") & np.array((1 << width) - 1, f"u{size}")
    if name == "shift_right_arithmetic":
        number = number.view(f"i{size}") if width >= 8 else cut_bits(number, width, signed=True).astype(f"i{size}")
    count = by.view(f"u{size}")
    far = count >= width
    bounded = np.where(far, width - 1, count).astype(number.dtype)
    shifted = SHIFTS[name](number, bounded)
    if name != "shift_right_arithmetic":
        shifted = np.where(far, 0, shifted)
    return [wrap(shifted.astype(kind), element)]


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _is_total(op: ir.Operation) -> bool:
    return "compare_type" in op.attributes and "TOTALORDER" in str(op.attributes["compare_type"])


@evaluates("stablehlo.compare")
def compare(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Compares by the order of the field. Every element but NaN equals itself, and NaN does in a total order."""
    direction = str(op.attributes["comparison_direction"]).split(" ")[-1].rstrip(">")
    lhs, rhs = operands
    if lhs.dtype.kind == "f" and (_is_total(op) or direction not in ("EQ", "NE")):
        order = machine.field.total_order if _is_total(op) else machine.field.order
        lhs, rhs = order(lhs), order(rhs)
    return [COMPARISONS[direction](lhs, rhs)]


def spread(scalar: Array, rank: int) -> Array:
    """A scalar per device, broadcastable to tensors of `rank` dimensions."""
    return scalar.reshape(scalar.shape[:1] + (1,) * rank) if scalar.ndim == 1 else scalar


@evaluates("stablehlo.select")
def select(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The second operand where the first holds, the third elsewhere."""
    predicate, on_true, on_false = operands
    return [np.where(spread(predicate, on_true.ndim - 1), on_true, on_false)]


@evaluates("stablehlo.clamp")
def clamp(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """min(max(x, low), high)."""
    low, x, high = (spread(operand, operands[1].ndim - 1) for operand in operands)
    if x.dtype.kind == "f":
        return [machine.field.minimum(machine.field.maximum(x, low), high)]
    return [np.minimum(np.maximum(x, low), high)]


@evaluates("stablehlo.complex")
def make_complex(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A complex number from its two parts."""
    return [operands[0] + 1j * operands[1]]


@evaluates("stablehlo.real")
def real(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The real part."""
    return [operands[0].real if operands[0].dtype.kind == "c" else operands[0]]


@evaluates("stablehlo.imag")
def imaginary(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The imaginary part."""
    return [operands[0].imag if operands[0].dtype.kind == "c" else np.zeros_like(operands[0])]


@evaluates("stablehlo.convert")
def convert(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Exact among integers and to wider floats; a hash named after the target type to narrower ones."""
    return [converted(machine.field, operands[0], element_of(op.operands[0]), element_of(op.results[0]))]


def converted(field: Field, x: Array, source: ir.Type, target: ir.Type) -> Array:
    """Elements of type `source` as elements of type `target`."""
    if is_complex(target):
        if not is_complex(source):
            return converted(field, x, source, ir.ComplexType(target).element_type).astype(np.complex128)
        inner = ir.ComplexType(source).element_type, ir.ComplexType(target).element_type
        return converted(field, x.real, *inner) + 1j * converted(field, x.imag, *inner)
    if is_complex(source):
        return converted(field, x.real, ir.ComplexType(source).element_type, target)
    if is_float(target):
        if not is_float(source):
            return field.from_integers(x.astype(np.int8) if x.dtype == np.bool_ else x)
        return x if holds(target, source) else field.hash(f"convert to {target}", x)
    if dtype_of(target) == np.bool_:
        return np.asarray(x != 0)
    return wrap(field.to_integers(x).astype(dtype_of(target)), target) if is_float(source) else _resized(x, target)


def _resized(x: Array, target: ir.Type) -> Array:
    return wrap(x.astype(dtype_of(target)), target)


_FORMATS = {"f64": (11, 52), "f32": (8, 23), "tf32": (8, 10), "bf16": (8, 7), "f16": (5, 10)}
"""Exponent and mantissa bits of formats with subnormals that contain others."""


def holds(wide: ir.Type, narrow: ir.Type) -> bool:
    """Whether the first type represents every number of the second."""
    if wide == narrow:
        return True
    outer = _FORMATS.get(str(wide))
    inner = _FORMATS.get(str(narrow))
    if outer is None:
        return False
    if inner is None:  # floats of 8 bits or fewer; the largest exponents of E8M0 and E5M2 need care
        return str(wide) in ("f64", "f32") or (str(wide) == "bf16" and "E8M0" not in str(narrow)) or str(narrow) == "f8E5M2"
    return outer[0] >= inner[0] and outer[1] >= inner[1]


@evaluates("stablehlo.reduce_precision")
def reduce_precision(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A hash named after the number of bits that are kept."""
    bit_counts = [str(op.attributes[name]) for name in ("exponent_bits", "mantissa_bits")]
    return [machine.field.hash(f"reduce precision to {' '.join(bit_counts)}", operands[0])]


@evaluates("stablehlo.popcnt")
def population_count(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The number of set bits."""
    mask = (1 << width_of(element_of(op.results[0]))) - 1
    words = operands[0].astype(np.int64).view(np.uint64) & np.uint64(mask)
    count = sum(((words >> np.uint64(bit)) & np.uint64(1) for bit in range(64)), np.zeros(words.shape, np.uint64))
    return [np.asarray(count).astype(operands[0].dtype)]


@evaluates("stablehlo.count_leading_zeros")
def leading_zeros(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The number of bits above the highest set bit."""
    width = width_of(element_of(op.results[0]))
    words = operands[0].astype(np.int64).view(np.uint64) & np.uint64((1 << width) - 1)
    length = sum(((words >> np.uint64(bit)) != 0 for bit in range(64)), np.zeros(words.shape, np.int64))
    return [(width - length).astype(operands[0].dtype)]


@evaluates("stablehlo.bitcast_convert")
def bitcast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Reinterprets bits (`bits`)."""
    source, target = element_of(op.operands[0]), element_of(op.results[0])
    if same_bits(source, target):
        return [operands[0]]
    if narrow_width(target) and is_float(source) and width_of(source) == width_of(target):
        machine.has_extended = True
        return [narrow_bits.from_floats(machine.field, operands[0], unsigned=ir.IntegerType(target).is_unsigned)]
    if (width := narrow_width(source)) and is_float(target) and width_of(target) == width:
        bits = operands[0] if narrow_bits.is_extended(operands[0]) else narrow_bits.extend(operands[0], width)
        return [narrow_bits.to_floats(machine.field, bits)]
    if narrow_width(source) and narrow_bits.is_extended(operands[0]):
        bits = narrow_bits.shorten(operands[0], narrow_width(source), unsigned=True)
        return [from_bits(machine.field, bits, source, target)]
    return [from_bits(machine.field, bits_of(machine.field, operands[0], source), source, target)]
