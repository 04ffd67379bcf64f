"""Element types and numbers as JAX writes them."""

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
"""What JAX calls an element type."""

WIDE = frozenset({"i64", "ui64", "f64", "complex<f64>"})
"""Element types that JAX has only where `jax_enable_x64` is set."""

WIDE_NAMES = frozenset(_NAMES[element] for element in WIDE)
"""The same as JAX calls them."""

Numbers = np.ndarray[Any, Any]


def dtype_name(element: ir.Type, op: ir.Operation) -> str:
    """`float32`. Raises OpError for a type that JAX has no arrays of."""
    if (found := _NAMES.get(str(element))) is None:
        raise OpError(op, f"has elements of {element}, which JAX has no arrays of, expected one of {', '.join(_NAMES)}")
    return found


def numpy_type(element: ir.Type, op: ir.Operation) -> np.dtype[Any]:
    """The same as numpy knows it."""
    name = dtype_name(element, op)
    found: np.dtype[Any] = np.dtype(getattr(np, name) if hasattr(np, name) else getattr(ml_dtypes, name))
    return found


_DENSE = re.compile(r"value = dense<(.*?)> : tensor<", re.S)
_BYTES = re.compile(r'"0x([0-9A-Fa-f]*)"')
_TOKEN = re.compile(r"[^\s\[\](),]+")


def splat(op: ir.Operation) -> Any:
    """The one number that a constant repeats, a scalar of its numpy type; None where its elements differ."""
    numbers = _numbers(op)
    if numbers.size == 1:
        return numbers.reshape(())[()]
    first = numbers.flat[0] if numbers.size else None
    return first if numbers.size and numbers.tobytes() == np.full(numbers.shape, first).tobytes() else None


def numbers(op: ir.Operation) -> Numbers:
    """The elements of a constant. Raises OpError where the program does not hold them."""
    return np.broadcast_to(_numbers(op), shape_of(op.results[0]))


def _numbers(op: ir.Operation) -> Numbers:
    """The elements of a constant, one if all are the same."""
    element, shape = element_of(op.results[0]), shape_of(op.results[0])
    dtype = numpy_type(element, op)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    written = _DENSE.search(str(op.get_asm(print_generic_op_form=True, large_elements_limit=None)))
    if written is None:
        raise OpError(op, "is a constant whose numbers are not in the program")
    if blob := _BYTES.fullmatch(written[1].strip()):
        found = _from_bytes(bytes.fromhex(blob[1]), dtype, math.prod(shape))
    else:
        found = _from_tokens(_TOKEN.findall(written[1]), dtype)
    return found.reshape(() if found.size == 1 else shape)


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
    if token.startswith("0x"):  # the bits of an infinity, of a NaN, or of a number that has no short text
        return np.array([int(token, 16)], f"u{dtype.itemsize}").view(dtype)[0]
    return dtype.type(float(token))


def is_float(number: Any) -> bool:
    """Whether a numpy scalar is a real floating-point number, of any width."""
    return np.asarray(number).dtype.name.startswith(("float", "bfloat"))


def is_float_type(element: ir.Type) -> bool:
    """Whether elements of this type are real floating-point numbers."""
    return str(element).startswith(("f", "bf"))


def number_code(number: Any) -> Code:
    """A numpy scalar as a Python number that becomes the same one again."""
    value = number.item() if hasattr(number, "item") else number
    if isinstance(value, complex):
        return Code(f"complex({_float_text(value.real)}, {_float_text(value.imag)})")
    if isinstance(value, (bool, np.bool_)):
        return Code(str(bool(value)))
    text = _shortest(number) if is_float(number) else str(int(value))
    return Code(text, UNARY) if text.startswith("-") else Code(text)


def _shortest(number: Any) -> str:
    """The shortest text that Python reads as a number which rounds to this one."""
    exact = float(number)
    if not math.isfinite(exact):
        return _float_text(exact)
    for digits in range(1, 17):
        short = float(f"{exact:.{digits}g}")
        with np.errstate(over="ignore"):  # few digits of the largest number may be more than it
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
