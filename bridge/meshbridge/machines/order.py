"""An order of devices as digits of their numbers: which links a device's number counts along, outermost first.

`y, x` on a torus of 4 by 4 says that the number of a device is 4 times its place along `y`, and its place along `x`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class GridDigit(NamedTuple):
    """A part of one coordinate: `size` values of it, `stride` apart."""

    dimension: int
    size: int
    stride: int


Block = tuple[GridDigit, ...]
"""Digits that devices are numbered along; of several, in an order of their own, as a ring goes through a grid."""


Coordinates = npt.NDArray[np.int64]
"""One row for each device, in order; one column for each dimension."""


def blocks(coordinates: Coordinates) -> tuple[Block, ...] | None:
    """What the numbers of devices with those coordinates count along, outermost first; None where the devices are no grid: where
    what they have along one dimension hangs on where they are along another, or has no regular steps.

    Consecutive devices are taken together, as few as are grids of the same shape wherever they stand, then these, and so on.
    """
    count = len(coordinates)
    grid_blocks: list[Block] = []
    digits: list[GridDigit] = []
    while (inner := _count(digits)) < count:
        sizes = (size for size in range(2 * inner, count + 1, inner) if count % size == 0)
        step = next(filter(None, (_step(coordinates, size, digits) for size in sizes)), None)
        if step is None:
            return None
        digits += step
        grid_blocks.insert(0, tuple(step))
    return tuple(_joined(grid_blocks))


def coordinates(digits: Sequence[GridDigit], dimensions: int) -> Coordinates:
    """The coordinates that count along those digits, outermost first."""
    rows = np.zeros((1, dimensions), np.int64)
    for digit in digits:
        along = np.zeros((digit.size, dimensions), np.int64)
        along[:, digit.dimension] = np.arange(digit.size) * digit.stride
        rows = (rows[:, None] + along).reshape(-1, dimensions)
    return rows


def _count(digits: Sequence[GridDigit]) -> int:
    return int(np.prod([digit.size for digit in digits], dtype=np.int64))


def _step(coordinates: Coordinates, size: int, inner_digits: Sequence[GridDigit]) -> list[GridDigit] | None:
    """The digits of groups of `size` devices besides those of smaller groups; None if the groups are no grids."""
    groups = coordinates.reshape(-1, size, coordinates.shape[1])
    groups = groups - groups.min(axis=1, keepdims=True)
    digits: list[GridDigit] = []
    for dimension in range(coordinates.shape[1]):
        values = groups[:, :, dimension]
        taken = np.zeros((len(groups), values.max() + 1), bool)
        np.put_along_axis(taken, values, True, axis=1)
        if (taken != taken[0]).any():
            return None
        inner = [digit for digit in inner_digits if digit.dimension == dimension]
        own = _further(set(np.flatnonzero(taken[0]).tolist()), inner, dimension)
        if own is None:
            return None
        digits += own
    return digits if _count(digits) * _count(inner_digits) == size else None


def _further(values: set[int], inner_digits: Sequence[GridDigit], dimension: int) -> list[GridDigit] | None:
    """The digits that count those values of a dimension besides `inner_digits`, outermost first."""
    spanned = {0}
    for digit in inner_digits:
        spanned = {value + step * digit.stride for value in spanned for step in range(digit.size)}
    digits: list[GridDigit] = []
    while spanned != values:
        if not spanned < values:
            return None
        stride, size, reached = min(values - spanned), 1, set(spanned)
        while (following := {value + size * stride for value in spanned}) <= values - reached:
            reached |= following
            size += 1
        if size == 1:
            return None
        digits.insert(0, GridDigit(dimension, size, stride))
        spanned = reached
    return digits


def _joined(found: Sequence[Block]) -> Iterator[Block]:
    """Neighbouring digits of one dimension that count on from each other are one."""
    last: Block = ()
    for block in found:
        if len(last) == len(block) == 1 and _counts_on(outer := last[0], inner := block[0]):
            last = (GridDigit(inner.dimension, outer.size * inner.size, inner.stride),)
            continue
        if last:
            yield last
        last = block
    if last:
        yield last


def _counts_on(outer: GridDigit, inner: GridDigit) -> bool:
    return outer.dimension == inner.dimension and outer.stride == inner.size * inner.stride
