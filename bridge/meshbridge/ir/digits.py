"""The digits of a device's row-major number in its mesh: one per mesh axis, or per factor of an axis's size.

A device's coordinates, its group and its number in the group are computed from digits.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshbridge.ir.sharding import Axes, Mesh

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Number = TypeVar("Number", int, Numbers)


class Digit(NamedTuple):
    """One factor of a mesh axis: the device with row-major number `d` has the value `d // stride % radix`.

    A tuple, since plans compare and hash digits half a million times per model.
    """

    axis: int
    radix: int
    stride: int

    def of(self, device: Number) -> Number:
        """The digit's value on the device with that row-major number, or on each device of an array."""
        return device // self.stride % self.radix


Digits = tuple[Digit, ...]
"""Digits from outer to inner: they number the devices of a group."""


def group_size(digits: Digits) -> int:
    """Devices in one group along `digits`."""
    return prod(digit.radix for digit in digits)


def divided(digits: Digits, inner: int) -> tuple[Digits, Digits]:
    """`digits` as outer ones, and the inner ones of groups of `inner` devices; no outer ones if none can be split there."""
    outer, within = list(digits), list[Digit]()
    while inner > 1:
        if not outer or gcd(outer[-1].radix, inner) not in (outer[-1].radix, inner):
            return (), digits
        axis, radix, stride = outer.pop()
        part = min(radix, inner)
        within.insert(0, Digit(axis, part, stride))
        if part < radix:
            outer.append(Digit(axis, radix // part, stride * part))
        inner //= part
    return tuple(outer), tuple(within)


def group_index(digits: Digits, device: Number) -> Number:
    """The number of `device`, or of each device of an array, in its group along `digits`."""
    index = device * 0
    for digit in digits:
        index = index * digit.radix + digit.of(device)
    return index


def numbered(digits: Digits) -> dict[int, Digit]:
    """By axis, the digits of a mesh of these axes alone, numbered along `digits`."""
    return {digit.axis: Digit(digit.axis, digit.radix, group_size(digits[i + 1 :])) for i, digit in enumerate(digits)}


def primes(number: int) -> list[int]:
    """The prime factors of a number, smallest first."""
    factors, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return [*factors, number] if number > 1 else factors


@lru_cache(maxsize=256)
def prime_digits(mesh: Mesh) -> Digits:
    """All axes of the mesh in digits of prime radix, outer to inner: the finest division."""
    stride = mesh.size
    digits = []
    for axis, size in enumerate(mesh.shape):
        for radix in primes(size):
            stride //= radix
            digits.append(Digit(axis, radix, stride))
    return tuple(digits)


def in_parts(digits: Digits, parts: Digits) -> Digits | None:
    """`digits` in terms of `parts`, outer to inner; None if a digit ends within a part."""
    divided_digits: list[Digit] = []
    for digit in digits:
        inside = [
            part for part in parts if digit.stride <= part.stride and part.stride * part.radix <= digit.stride * digit.radix
        ]
        if group_size(tuple(inside)) != digit.radix:
            return None
        divided_digits += sorted(inside, key=lambda part: -part.stride)
    return tuple(divided_digits)


@lru_cache(maxsize=256)
def line_digits(mesh: Mesh) -> Digits | None:
    """For each of `prime_digits`, the digit of a device's logical number with the same value: the same digit if devices are in
    row-major order, one of another stride if their order transposes digits. None for other device orders."""
    primes = prime_digits(mesh)
    if not mesh.device_ids:
        return primes
    ids = np.array(mesh.device_ids, np.int64)
    logical = tuple(Digit(digit.axis, digit.radix, int(ids[digit.stride])) for digit in primes)
    inner = 1
    for digit in sorted(logical, key=lambda digit: digit.stride):
        if digit.stride != inner:
            return None
        inner *= digit.radix
    return logical if np.array_equal(groups_along(mesh, logical).ravel(), ids) else None


def logical_digits(mesh: Mesh, digits: Digits) -> Digits | None:
    """`digits` of a device's mesh position as digits of its logical number; None if there are none."""
    if not mesh.device_ids:
        return digits
    line, parts = line_digits(mesh), in_parts(digits, prime_digits(mesh))
    if line is None or parts is None:
        return None
    logical = dict(zip(prime_digits(mesh), line, strict=True))
    return tuple(logical[part] for part in parts)


def axes_of(mesh: Mesh, logical: Digits) -> Axes | None:
    """The axes along which the devices of a group differ, outer to inner, given the digits of logical numbers; None for a device
    order that does not transpose digits."""
    if (line := line_digits(mesh)) is None:
        return None
    ordered = sorted(line, key=lambda part: -part.stride)
    return tuple(
        dict.fromkeys(
            part.axis
            for digit in logical
            for part in ordered
            if part.stride < digit.stride * digit.radix and digit.stride < part.stride * part.radix
        )
    )


def axis_digits(mesh: Mesh, axes: Axes) -> Digits:
    """Whole mesh axes as digits."""
    return tuple(Digit(axis, mesh.shape[axis], prod(mesh.shape[axis + 1 :])) for axis in axes)


def whole_axes(mesh: Mesh, digits: Digits) -> Axes | None:
    """The mesh axes that `digits` form, outer to inner; None if they leave a factor of an axis out."""
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
    first_members = devices[np.all([digit.of(devices) == 0 for digit in digits], axis=0)] if digits else devices
    offsets = np.zeros(1, np.int64)
    for digit in digits:
        offsets = (offsets[:, None] + np.arange(digit.radix) * digit.stride).ravel()
    return first_members[:, None] + offsets
