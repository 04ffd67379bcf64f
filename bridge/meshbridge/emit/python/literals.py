"""Writes element types and numbers as JAX does."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import ml_dtypes
import numpy as np

from meshbridge.emit.python.code import UNARY, Code, list_of
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.elements import DTYPES
from meshbridge.ir.mlir import OpError, ir

_NAMES = {**DTYPES, "i1": "bool_"}
"""JAX's names of element types."""

WIDE = frozenset({"i64", "ui64", "f64", "complex<f64>"})
"""Element types that JAX has only if `jax_enable_x64` is set."""

WIDE_NAMES = frozenset(_NAMES[element] for element in WIDE)
"""JAX's names of the types in WIDE."""

Numbers = np.ndarray[Any, Any]


def dtype_name(element: ir.Type, op: ir.Operation) -> str:
    """`float32`. Raises OpError if JAX has no arrays of this type."""
    if (name := _NAMES.get(str(element))) is None:
        raise OpError(op, f"has elements of {element}, which JAX has no arrays of, expected one of {', '.join(_NAMES)}")
    return name


def numpy_type(element: ir.Type, op: ir.Operation) -> np.dtype[Any]:
    """The numpy dtype of an element type."""
    name = dtype_name(element, op)
    dtype: np.dtype[Any] = np.dtype(getattr(np, name) if hasattr(np, name) else getattr(ml_dtypes, name))
    return dtype


_DENSE = re.compile(r"value = dense<(.*?)> : tensor<", re.S)
_BYTES = re.compile(r'"0x([0-9A-Fa-f]*)"')
_TOKEN = re.compile(r"[^\s\[\](),]+")


def splat(op: ir.Operation) -> Any:
    """The number that a constant repeats, a scalar of its numpy type; None if its elements differ."""
    numbers = _numbers(op)
    if numbers.size == 1:
        return numbers.reshape(())[()]
    element = numbers.flat[0] if numbers.size else None
    return element if numbers.size and numbers.tobytes() == np.full(numbers.shape, element).tobytes() else None


def numbers(op: ir.Operation) -> Numbers:
    """The elements of a constant. Raises OpError if the program does not contain them."""
    return np.broadcast_to(_numbers(op), shape_of(op.results[0]))


def _numbers(op: ir.Operation) -> Numbers:
    """The elements of a constant, or one element if the text has one."""
    element, shape = element_of(op.results[0]), shape_of(op.results[0])
    dtype = numpy_type(element, op)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    written = _DENSE.search(str(op.get_asm(print_generic_op_form=True, large_elements_limit=None)))
    if written is None:
        raise OpError(op, "is a constant whose numbers are not in the program")
    if blob := _BYTES.fullmatch(written[1].strip()):
        elements = _from_bytes(bytes.fromhex(blob[1]), dtype, math.prod(shape))
    else:
        elements = _from_tokens(_TOKEN.findall(written[1]), dtype)
    return elements.reshape(() if elements.size == 1 else shape)


def _from_bytes(data: bytes, dtype: np.dtype[Any], count: int) -> Numbers:
    if dtype == np.bool_ and len(data) < count:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:count].astype(bool)
    return np.frombuffer(data, np.uint8).astype(bool) if dtype == np.bool_ else np.frombuffer(data, dtype)


def _from_tokens(tokens: list[str], dtype: np.dtype[Any]) -> Numbers:
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        parts = _from_tokens(tokens, part).reshape(-1, 2)
        return cast(Numbers, np.ascontiguousarray(parts).view(dtype).reshape(-1))
    return np.array([_number(token, dtype) for token in tokens], dtype)


def _number(token: str, dtype: np.dtype[Any]) -> Any:
    if dtype == np.bool_:
        return token == "true"
    if np.issubdtype(dtype, np.integer) or dtype.name.startswith(("int", "uint")):
        return int(token, 0)
    if token.startswith("0x"):  # bits: of an infinity, a NaN, or a number without a short text
        return np.array([int(token, 16)], f"u{dtype.itemsize}").view(dtype)[0]
    return dtype.type(float(token))


def is_float(number: Any) -> bool:
    """True if a numpy scalar is a real floating-point number of any width."""
    return np.asarray(number).dtype.name.startswith(("float", "bfloat"))


def is_float_type(element: ir.Type) -> bool:
    """True if elements of this type are real floating-point numbers."""
    return str(element).startswith(("f", "bf"))


def number_code(number: Any) -> Code:
    """A numpy scalar as a Python number that rounds to it."""
    value = number.item() if hasattr(number, "item") else number
    if isinstance(value, complex):
        return Code(f"complex({_float_text(value.real)}, {_float_text(value.imag)})")
    if isinstance(value, (bool, np.bool_)):
        return Code(str(bool(value)))
    text = _shortest(number) if is_float(number) else str(int(value))
    return Code(text, UNARY) if text.startswith("-") else Code(text)


def _shortest(number: Any) -> str:
    """The shortest Python literal that rounds to `number`."""
    exact = float(number)
    if not math.isfinite(exact):
        return _float_text(exact)
    for digits in range(1, 17):
        short = float(f"{exact:.{digits}g}")
        with np.errstate(over="ignore"):  # the largest number, rounded to few digits, may overflow
            if np.asarray(short).astype(np.asarray(number).dtype) == number:
                return repr(short)
    return repr(exact)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "jnp.nan"
    if math.isinf(value):
        return "jnp.inf" if value > 0 else "-jnp.inf"
    return repr(value)


def nested(values: Numbers) -> Code:
    """The numbers of an array as nested lists."""
    if values.ndim == 0:
        return number_code(values[()])
    return list_of(nested(values[index]) for index in range(values.shape[0]))
