"""Values without operands: constants, iota, random numbers of no algorithm."""

from __future__ import annotations

import re
from typing import cast

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.field import Array, Field
from meshbridge.verification.machine import (
    Evaluator,
    dtype_of,
    element_of,
    evaluates,
    integer,
    is_complex,
    is_float,
    shape_of,
    width_of,
)

_DENSE = re.compile(r"value = dense<(.*)> : tensor<", re.S)
_BYTES = re.compile(r'"0x([0-9A-Fa-f]*)"')
_TOKEN = re.compile(r"[^\s\[\](),]+")


@evaluates("stablehlo.constant", "chlo.constant", "arith.constant")
def constant(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The numbers of the attribute; floating-point ones are dyadic rationals."""
    shape = shape_of(op.results[0])
    numbers = _numbers(op)
    element = element_of(op.results[0])
    if is_float(element) or is_complex(element):
        numbers = machine.field.from_floats(numbers)
    else:
        numbers = numbers.astype(dtype_of(element))
    return [np.broadcast_to(numbers, shape)[None]]


def _numbers(op: ir.Operation) -> Array:
    """The numbers of a constant: one number for a splat."""
    element, shape = element_of(op.results[0]), shape_of(op.results[0])
    try:
        value = op.attributes["value"]
    except TypeError:  # the bindings have no class for complex elements
        return _from_text(op, element, shape)
    if isinstance(value, (ir.IntegerAttr, ir.FloatAttr)):  # of a scalar
        return np.array(value.value)
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        try:
            return np.array(value.get_splat_value().value)  # type: ignore[attr-defined]
        except (TypeError, AttributeError):
            return _from_text(op, element, shape)
    try:
        return np.array(value).reshape(shape)
    except (TypeError, ValueError):  # types that numpy has no buffers of
        return _from_text(op, element, shape)


def _from_text(op: ir.Operation, element: ir.Type, shape: tuple[int, ...]) -> Array:
    match = _DENSE.search(str(op.get_asm(print_generic_op_form=True)))
    if match is None:
        raise OpError(op, "is a constant without its numbers in the program")
    if in_bytes := _BYTES.fullmatch(match[1].strip()):
        return _from_bytes(bytes.fromhex(in_bytes[1]), element, shape)
    tokens = _TOKEN.findall(match[1])
    if is_complex(element):
        part = ir.ComplexType(element).element_type
        numbers = np.array([_number(token, part) for token in tokens]).reshape(-1, 2)
        dtype = np.complex64 if width_of(part) == 32 else np.complex128
        complexes = (numbers[:, 0] + 1j * numbers[:, 1]).astype(dtype)
        return complexes.reshape(_filled(complexes, shape))
    numbers = np.array([_number(token, element) for token in tokens])
    return numbers.reshape(_filled(numbers, shape))


def _filled(numbers: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    return () if numbers.size == 1 else shape


def _number(token: str, element: ir.Type) -> float | int:
    if token in ("true", "false"):
        return int(token == "true")
    if not token.startswith("0x"):
        return float(token) if is_float(element) else int(token)
    value = int(token, 16)
    return float(_floats(np.array([value]), element)[0]) if is_float(element) else value


def _from_bytes(data: bytes, element: ir.Type, shape: tuple[int, ...]) -> Array:
    if is_complex(element):
        part = width_of(ir.ComplexType(element).element_type)
        numbers = np.frombuffer(data, f"c{part // 4}")
    elif is_float(element):
        size = max(8, width_of(element)) // 8
        numbers = _floats(np.frombuffer(data, f"u{size}"), element)
    else:
        numbers = np.frombuffer(data, dtype_of(element))
    return numbers.reshape(_filled(numbers, shape))


def _floats(bits: Array, element: ir.Type) -> Array:
    """Bits of a floating-point type as numbers."""
    name = str(element)
    native = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    if name in native:
        return bits.astype(f"u{width_of(element) // 8}").view(native[name])
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.array([_small_float(int(pattern), name) for pattern in bits], np.float32)


def _small_float(bits: int, name: str) -> float:
    """A number of at most 8 bits, by the letters of its type: f8E4M3FN has 4 exponent bits, 3 mantissa bits and no infinity."""
    parts = cast("re.Match[str]", re.fullmatch(r"f(\d+)E(\d+)M(\d+)(B11)?(FN)?(UZ|U)?", name))
    total, exponent_bits, mantissa_bits = int(parts[1]), int(parts[2]), int(parts[3])
    mantissa, exponent = bits & ((1 << mantissa_bits) - 1), bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if bits >> (total - 1) & 1 and parts[6] != "U" else 1.0
    largest, bias = (1 << exponent_bits) - 1, (1 << (exponent_bits - 1)) - (0 if parts[6] == "UZ" else 1)
    bias = 11 if parts[4] else bias
    if parts[6] == "U":  # E8M0FNU: powers of two
        return float("nan") if exponent == largest else 2.0 ** (exponent - 127)
    if parts[6] == "UZ" and bits == 1 << (total - 1):
        return float("nan")
    if not parts[5] and exponent == largest:
        return float("nan") if mantissa else sign * float("inf")
    if parts[5] and not parts[6] and total == 8 and exponent == largest and mantissa == (1 << mantissa_bits) - 1:
        return float("nan")
    scale = 2.0**-mantissa_bits
    if exponent == 0:
        return sign * mantissa * scale * 2.0 ** (1 - bias)
    return float(sign * (1 + mantissa * scale) * 2.0 ** (exponent - bias))


@evaluates("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Counts along one dimension."""
    shape, element = shape_of(op.results[0]), element_of(op.results[0])
    dim = integer(op, "iota_dimension")
    counted = _as_elements(machine.field, np.arange(shape[dim]), element)
    counted = counted.reshape([-1 if index == dim else 1 for index in range(len(shape))])
    return [np.broadcast_to(counted, shape)[None]]


def _as_elements(field: Field, numbers: Array, element: ir.Type) -> Array:
    if is_float(element) or is_complex(element):
        return field.from_integers(numbers).astype(dtype_of(element))
    return numbers.astype(dtype_of(element))


def _as_bits(field: Field, words: Array, element: ir.Type) -> Array:
    if is_float(element):
        return field.from_integers((words >> np.uint64(14)).astype(np.int64))
    return words.astype(dtype_of(element))


@evaluates("stablehlo.rng")
def random_numbers(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A hash of the bounds and of the position: two such ops of one shape draw the same numbers."""
    shape, element = shape_of(op.results[0]), element_of(op.results[0])
    count = np.arange(int(np.prod(shape, dtype=np.int64)))[None]
    bounds = [bound.reshape(bound.shape[0], 1) for bound in operands[:2]]
    words = machine.field.hash_words(f"rng {op.attributes['rng_distribution']}", *bounds, count)
    return [_as_bits(machine.field, words, element).reshape(-1, *shape)]
