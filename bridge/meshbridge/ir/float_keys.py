"""Order-preserving integer keys of floating point numbers, for collectives that compute a maximum or minimum.

XLA's collectives lose a NaN, unlike its own maximum and minimum. As a key, a NaN is the extreme value that wins:

    x as bits        0x80000001  0x80000000  0x00000000  0x3f800000  0x7f800000  NaN
    x as a key               -2          -1           0  0x3f800000  0x7f800000  0x7fffffff in a maximum, 0x80000000 in a minimum

Keys have the same number of bytes. Only element types in which all bits but the sign form a NaN have keys.
"""

from __future__ import annotations

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir

_WIDTHS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E5M2": 8, "f8E4M3": 8, "f8E4M3FN": 8, "f8E3M4": 8}


def is_orderable(element: ir.Type) -> bool:
    """Whether elements of this type have keys."""
    return str(element) in _WIDTHS


def as_keys(emit: Builder, value: ir.Value, combiner: str) -> ir.Value:
    """Integer keys in the order of the elements of `value`; a NaN wins in the `combiner` (`maximum`, `minimum`)."""
    width = _WIDTHS[str(element_of(value))]
    type_ = tensor(shape_of(value), ir.IntegerType.get_signless(width))
    key = _mirrored(emit, emit.value("bitcast_convert", type_, [value]), width)
    winner = 2 ** (width - 1) - 1 if combiner == "maximum" else -(2 ** (width - 1))
    return emit.select(emit.compare("NE", value, value), emit.splat(type_, winner), key)


def from_keys(emit: Builder, keys: ir.Value, element: ir.Type) -> ir.Value:
    """The numbers of type `element` with these keys."""
    return emit.value("bitcast_convert", tensor(shape_of(keys), element), [_mirrored(emit, keys, _WIDTHS[str(element)])])


def _mirrored(emit: Builder, bits: ir.Value, width: int) -> ir.Value:
    """Inverts the bits below the sign if the sign is set, since negative numbers are ordered the other way. Its own inverse."""
    type_ = ir.RankedTensorType(bits.type)
    sign = emit.elementwise("shift_right_arithmetic", bits, emit.splat(type_, width - 1))
    return emit.elementwise("xor", bits, emit.elementwise("and", sign, emit.splat(type_, 2 ** (width - 1) - 1)))
