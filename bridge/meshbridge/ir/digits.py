"""The digits of a device's row-major number in its mesh: a mesh axis is one, and so is each factor of its size.

Whatever depends on where a device stands follows from digits: its coordinates, its group, its number in the group.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshbridge.ir.sharding import Axes, Mesh

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Number = TypeVar("Number", int, Numbers)


class Digit(NamedTuple):
    """One factor of a mesh axis: the device with row-major number `d` has the value `d // stride % radix`.

    A tuple, since plans compare and hash digits half a million times on a model.
    """

    axis: int
    radix: int
    stride: int

    def of(self, device: Number) -> Number:
        """The digit's value on the device with that row-major number, or on each of an array of them."""
        return device // self.stride % self.radix


Digits = tuple[Digit, ...]
"""Digits from outer to inner: together they number the devices of a group."""


def group_size(digits: Digits) -> int:
    """Devices in one group along `digits`."""
    return prod(digit.radix for digit in digits)


def group_index(digits: Digits, device: Number) -> Number:
    """The number of `device`, or of each of an array of them, in its group along `digits`."""
    index = device * 0
    for digit in digits:
        index = index * digit.radix + digit.of(device)
    return index


def numbered(digits: Digits) -> dict[int, Digit]:
    """By axis, the digits of the devices that whole axes make up on their own, numbered along `digits`."""
    return {digit.axis: Digit(digit.axis, digit.radix, group_size(digits[i + 1 :])) for i, digit in enumerate(digits)}


def axis_digits(mesh: Mesh, axes: Axes) -> Digits:
    """Whole mesh axes as digits."""
    return tuple(Digit(axis, mesh.shape[axis], prod(mesh.shape[axis + 1 :])) for axis in axes)


def whole_axes(mesh: Mesh, digits: Digits) -> Axes | None:
    """The mesh axes that `digits` spell, outer to inner, or None where a digit is a proper factor that nothing completes."""
    axes: list[int] = []
    expected: tuple[int, int] | None = None  # axis and stride*radix of the digit that must come next
    for digit in digits:
        inner = prod(mesh.shape[digit.axis + 1 :])
        top = digit.stride * digit.radix
        if expected is None:
            if top != inner * mesh.shape[digit.axis]:
                return None
            axes.append(digit.axis)
        elif expected != (digit.axis, top):
            return None
        expected = None if digit.stride == inner else (digit.axis, digit.stride)
    return None if expected else tuple(axes)


def groups_along(mesh: Mesh, digits: Digits) -> Numbers:
    """The row-major numbers of the devices of every group along `digits`, one row for each group, in group order.

    No digits mean groups of one device each.
    """
    devices = np.arange(mesh.size)
    first = devices[np.all([digit.of(devices) == 0 for digit in digits], axis=0)] if digits else devices
    offsets = np.zeros(1, np.int64)
    for digit in digits:
        offsets = (offsets[:, None] + np.arange(digit.radix) * digit.stride).ravel()
    return first[:, None] + offsets
