"""The bits of floats of 8 and 16 bits, which are too few for an element's position in the order.

Their integers carry further bits below those of the type: such a value is *extended*, 24 bits wide and stored as int32, while its
type is stored as int8 or int16. Ops that move bits, select among them or combine them elementwise keep the further bits; for all
other ops an integer has the bits of its type. So integers that order floats of 16 bits compare as the numbers do.
"""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.field import BOUND, Array, Field

WIDTH = 24
"""Bits of an extended integer."""

_SPARE = WIDTH - BOUND.bit_length()
"""Bits of an extended integer below the lowest of a position."""

_LARGEST = (1 << (WIDTH - 1 - _SPARE)) - 1
"""The magnitude of a position with all bits set: that of NaN."""

KEEPING = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("and", "or", "xor", "not", "select", "maximum", "minimum"),
        *("reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "reverse", "pad", "optimization_barrier"),
        *("dynamic_slice", "dynamic_update_slice", "gather", "bitcast_convert"),
        *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute", "collective_broadcast", "reduce"),
        *("while", "case", "if", "return", "composite"),
    )
) | {"func.call", "sdy.manual_computation", "mesh.all_gather", "mesh.all_slice", "mesh.all_to_all", "mesh.permute", "mesh.shard"}
"""Ops that keep the further bits of their operands."""


def narrow_width(kind: ir.Type) -> int:
    """The bits of a tensor of integers of 8 or 16 bits; 0 for any other type."""
    element = ir.RankedTensorType(kind).element_type if isinstance(kind, ir.RankedTensorType) else kind
    return int(element.width) if isinstance(element, ir.IntegerType) and element.width in (8, 16) else 0


def is_extended(numbers: Array) -> bool:
    """Whether a value of a type of 8 or 16 bits is extended."""
    return numbers.dtype == np.int32


def extend(numbers: Array, width: int) -> Array:
    """Integers with further bits equal to their lowest one: masks of ones stay masks of ones."""
    shift = WIDTH - width
    return (numbers.astype(np.int32) << shift) | np.where(numbers & 1, (1 << shift) - 1, 0).astype(np.int32)


def shorten(numbers: Array, width: int, *, unsigned: bool) -> Array:
    """Extended integers without their further bits."""
    return (numbers >> (WIDTH - width)).astype(f"{'u' if unsigned else 'i'}{width // 8}")


def as_its_type(element: ir.Type, value: Array) -> Array:
    """A value without further bits, as a program returns it."""
    width = narrow_width(element)
    return shorten(value, width, unsigned=ir.IntegerType(element).is_unsigned) if width and is_extended(value) else value


def of_one_kind(name: str, types: list[ir.Type], values: list[Array]) -> list[Array]:
    """The operands of an op: all narrow integers extended if the op keeps further bits and one operand has them, else none."""
    widths = [narrow_width(kind) for kind in types]
    if not any(width and is_extended(value) for width, value in zip(widths, values, strict=True)):
        return values
    keeps = name in KEEPING
    return [_as(kind, width, value, keeps) if width else value for kind, width, value in zip(types, widths, values, strict=True)]


def _as(kind: ir.Type, width: int, value: Array, extended: bool) -> Array:
    if is_extended(value) == extended:
        return value
    unsigned = ir.IntegerType(ir.RankedTensorType(kind).element_type).is_unsigned
    return extend(value, width) if extended else shorten(value, width, unsigned=unsigned)


def from_floats(field: Field, numbers: Array, *, unsigned: bool) -> Array:
    """The extended bits of elements: sign and magnitude of their position."""
    place = field.positions(numbers, _LARGEST).astype(np.int32)
    sign = 1 << (WIDTH - 1) if unsigned else -(1 << (WIDTH - 1))
    return (np.abs(place) << _SPARE) + np.where(place < 0, sign, 0).astype(np.int32)


def to_floats(field: Field, numbers: Array) -> Array:
    """The elements with these extended bits."""
    magnitude = (numbers & ((1 << (WIDTH - 1)) - 1)) >> _SPARE
    negative = (numbers >> (WIDTH - 1)) & 1 == 1
    return field.at_positions(np.where(negative, -magnitude, magnitude), _LARGEST)
