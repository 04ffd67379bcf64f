"""Writes two shardings of one tensor in a common number system, if they have one.

Every tensor dimension becomes a list of *positions*, outer to inner; at each position the source and the target each either hold
a digit of the device's number (the position is sharded along it) or nothing (it is local). Two shardings are *aligned* if at
every position both have the same radix. Over axes whose sizes are powers of one prime all are; 2-way against 3-way is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from meshbridge.ir.digits import Digit, Digits
from meshbridge.ir.sharding import Axes, Mesh, Split


class Position(NamedTuple):
    """One factor of a tensor dimension: number `place` of those of `dim`, from outer to inner."""

    dim: int
    place: int
    radix: int
    source: Digit | None
    target: Digit | None

    @property
    def order(self) -> tuple[int, int]:
        """Row-major order of a tensor's positions."""
        return (self.dim, self.place)


@dataclass(frozen=True)
class Alignment:
    """Two shardings in one number system: the positions in row-major order, and the digits of every mesh axis longer than 1."""

    positions: tuple[Position, ...]
    digits: dict[int, Digits]

    def of(self, axes: Axes) -> Digits:
        """The digits of `axes`, outer to inner."""
        return tuple(digit for axis in axes for digit in self.digits.get(axis, ()))


class Cuts(NamedTuple):
    """The products at which one position ends and the next begins, in ascending order, 1 first."""

    dims: list[list[int]]
    axes: dict[int, list[int]]
    "For every mesh axis longer than 1: relative to its outer end, its size last."


def common_cuts(mesh: Mesh, source: Sequence[Axes], target: Sequence[Axes]) -> Cuts | None:
    """The cuts of two splits, None if they are unaligned.

    A cut inside an axis applies wherever the axis shards a dimension, so cuts are carried from one side to the other until
    nothing changes.
    """
    dims: list[set[int]] = []
    # For each axis, the dimensions that it shards: their cuts, and the product of the axes outside it.
    uses: dict[int, list[tuple[set[int], int]]] = {}
    for sides in zip(source, target, strict=True):
        ends = {1}
        for axes in sides:
            start = 1
            for axis in axes:
                uses.setdefault(axis, []).append((ends, start))
                start *= mesh.shape[axis]
                ends.add(start)
        dims.append(ends)
    shared = [(axis, used_by) for axis, used_by in uses.items() if len(used_by) > 1]
    axes_cuts = {axis: {1, size} for axis, size in enumerate(mesh.shape)}
    changed = True
    while changed:
        changed = False
        ordered = [sorted(ends) for ends in dims]
        if not all(_is_chain(ends) for ends in ordered if len(ends) > 2):
            return None
        for axis, ((source_cuts, source_outer), (target_cuts, target_outer)) in shared:
            size = mesh.shape[axis]
            from_source, from_target = _inside(source_cuts, source_outer, size), _inside(target_cuts, target_outer, size)
            axes_cuts[axis] = from_source
            if from_source != from_target:
                source_cuts.update([source_outer * cut for cut in from_target])
                target_cuts.update([target_outer * cut for cut in from_source])
                changed = True
    for axis, used_by in uses.items():
        if len(used_by) == 1:
            axes_cuts[axis] = _inside(*used_by[0], mesh.shape[axis])
    return Cuts(ordered, {axis: sorted(ends) for axis, ends in axes_cuts.items() if len(ends) > 1})


def _is_chain(ordered: list[int]) -> bool:
    """Whether each number divides the next."""
    previous = 1
    for end in ordered:
        if end % previous:
            return False
        previous = end
    return True


def _inside(ends: set[int], start: int, size: int) -> set[int]:
    """The `ends` of a dimension that lie within an axis of that `size`, relative to its outer end at `start`."""
    stop = start * size
    return {end // start for end in ends if start <= end <= stop}


@lru_cache(maxsize=1 << 14)
def align(shape: tuple[int, ...], mesh: Mesh, source: Split, target: Split) -> Alignment | None:
    """The common number system of two splits of a (padded) `shape`, or None where there is none.

    Every dimension must divide by the devices that split it on either side.
    """
    cuts = common_cuts(mesh, source, target)
    if cuts is None or any(size % ends[-1] for size, ends in zip(shape, cuts.dims, strict=True)):
        return None
    digits = {axis: _axis_digits(mesh, axis, ends) for axis, ends in cuts.axes.items()}
    positions = tuple(_positions(shape, cuts.dims, mesh, source, target, digits))
    return Alignment(positions, {axis: tuple(listed.values()) for axis, listed in digits.items()})


def _axis_digits(mesh: Mesh, axis: int, cuts: list[int]) -> dict[int, Digit]:
    """The digits of one axis by the product of the digits outside them."""
    below = prod(mesh.shape[axis + 1 :])
    size = mesh.shape[axis]
    return {outer: Digit(axis, inner // outer, below * (size // inner)) for outer, inner in itertools.pairwise(cuts)}


def _positions(
    shape: tuple[int, ...], cuts: list[list[int]], mesh: Mesh, source: Split, target: Split, digits: dict[int, dict[int, Digit]]
) -> list[Position]:
    positions = []
    for dim, size in enumerate(shape):
        ordered = cuts[dim]
        labels = [_labels(mesh, split[dim], digits) for split in (source, target)]
        for place, (outer, inner) in enumerate(itertools.pairwise(ordered)):
            positions.append(Position(dim, place, inner // outer, labels[0].get(outer), labels[1].get(outer)))
        positions.append(Position(dim, len(ordered), size // ordered[-1], None, None))
    return positions


def _labels(mesh: Mesh, axes: Axes, digits: dict[int, dict[int, Digit]]) -> dict[int, Digit]:
    """The digit that begins at each cut, for one dimension of one sharding."""
    labels: dict[int, Digit] = {}
    product = 1
    for axis in axes:
        if mesh.shape[axis] > 1:
            labels |= {product * outer: digit for outer, digit in digits[axis].items()}
        product *= mesh.shape[axis]
    return labels
