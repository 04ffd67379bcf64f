"""Floating-point numbers as bits, and back.

The bits of an element are its sign in the order and the magnitude of its position there: as with IEEE numbers, integers of the
same sign compare as the numbers do, flipping the first bit negates, clearing it takes the magnitude. Reading them back gives the
element again, so integers that order floats (XLA and JAX sort and reduce by them) mean what they mean on numbers. A float of 32
bits or more has room for every position. In a narrower one it is reduced to the bits there are: reading back gives another
element.
"""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.field import BOUND, Array, Field
from meshbridge.verification.machine import dtype_of, is_complex, is_float, width_of

_PLACE_BITS = BOUND.bit_length() - 1
"""Bits of the magnitude of a position, those of infinite elements included."""


def same_bits(source: ir.Type, target: ir.Type) -> bool:
    """Whether values are stored alike: a conversion between the two changes nothing."""
    return source == target or (
        dtype_of(source) == dtype_of(target) and is_float(source) and width_of(source) == width_of(target)
    )


def bits_of(field: Field, numbers: Array, element: ir.Type) -> Array:
    """The bits of elements as unsigned integers of their width; complex numbers have two in a last dimension."""
    if is_complex(element):
        part = ir.ComplexType(element).element_type
        return np.stack([bits_of(field, numbers.real, part), bits_of(field, numbers.imag, part)], axis=-1)
    if not is_float(element):
        return numbers.view(f"u{numbers.dtype.itemsize}")
    width = width_of(element)
    spare = max(0, _PLACE_BITS - (width - 1))
    place = field.positions(numbers, ((1 << (width - 1)) - 1) << spare)
    magnitude = np.abs(place) >> spare
    return (magnitude | ((place < 0).astype(np.int64) << (width - 1))).astype(f"u{max(8, width) // 8}")


def from_bits(field: Field, bits: Array, source: ir.Type, target: ir.Type) -> Array:
    """Elements of type `target` out of bits of elements of type `source`; the last dimension holds the difference in width."""
    if is_complex(target):
        part = ir.ComplexType(target).element_type
        halves = from_bits(field, bits, source, part)
        return halves[..., 0] + 1j * halves[..., 1]
    size = max(8, width_of(target)) // 8
    if bits.dtype.itemsize > size:
        bits = np.ascontiguousarray(bits)[..., None].view(f"u{size}")
    elif bits.dtype.itemsize < size:
        bits = np.ascontiguousarray(bits).view(f"u{size}")[..., 0]
    if not is_float(target):
        return bits.view(dtype_of(target))
    width = width_of(target)
    spare, largest = max(0, _PLACE_BITS - (width - 1)), (1 << (width - 1)) - 1
    magnitude = (bits & np.array(largest, bits.dtype)).astype(np.int64) << spare
    negative = (bits >> np.array(width - 1, bits.dtype)).astype(np.bool_)
    return field.at_positions(np.where(negative, -magnitude, magnitude), largest << spare)
