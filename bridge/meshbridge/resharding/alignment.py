"""Writes two shardings of one tensor in a common number system, if they have one.

Every tensor dimension becomes a list of *positions*, outer to inner; at each position the source and the target each either hold
a digit of the device's number (the position is sharded along it) or nothing (it is local). Two shardings are *aligned* if at
every position both have the same radix. Over axes whose sizes are powers of one prime all are; 2-way against 3-way is not.
"""

from __future__ import annotations

import itertools
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


@dataclass
class _Cuts:
    """Per tensor dimension and per mesh axis, the products at which one position ends and the next begins."""

    dims: list[set[int]]
    places: dict[int, list[tuple[int, int]]]
    "Mesh axis to where it shards: tensor dimension, and the product of the axes outside it there."

    def align(self, mesh: Mesh) -> bool:
        """Carries every bound of a digit inside an axis from one side to the other until nothing changes; False if unaligned."""
        changed = True
        while changed:
            changed = False
            if not all(_is_chain(cuts) for cuts in self.dims):
                return False
            for axis, places in self.places.items():
                size = mesh.shape[axis]
                inside = {cut // start for dim, start in places for cut in self.dims[dim] if start <= cut <= start * size}
                for dim, start in places:
                    missing = {start * cut for cut in inside} - self.dims[dim]
                    self.dims[dim] |= missing
                    changed = changed or bool(missing)
        return True

    def within(self, mesh: Mesh, axis: int) -> list[int]:
        """The bounds of an axis's digits, relative to its outer end."""
        inside = {1, mesh.shape[axis]}
        for dim, start in self.places.get(axis, [])[:1]:
            inside |= {cut // start for cut in self.dims[dim] if start <= cut <= start * mesh.shape[axis]}
        return sorted(inside)


def _is_chain(cuts: set[int]) -> bool:
    ordered = sorted(cuts)
    return all(inner % outer == 0 for outer, inner in itertools.pairwise(ordered))


@lru_cache(maxsize=1 << 14)
def align(shape: tuple[int, ...], mesh: Mesh, source: Split, target: Split) -> Alignment | None:
    """The common number system of two splits of a (padded) `shape`, or None where there is none.

    Every dimension must divide by the devices that split it on either side.
    """
    cuts = _Cuts([{1} for _ in shape], {})
    for split in (source, target):
        for dim, axes in enumerate(split):
            product = 1
            for axis in axes:
                if mesh.shape[axis] > 1:
                    cuts.places.setdefault(axis, []).append((dim, product))
                product *= mesh.shape[axis]
                cuts.dims[dim].add(product)
    if not cuts.align(mesh) or any(size % max(cut) for size, cut in zip(shape, cuts.dims, strict=True)):
        return None
    digits = {axis: _axis_digits(mesh, axis, cuts.within(mesh, axis)) for axis in range(mesh.rank) if mesh.shape[axis] > 1}
    positions = tuple(_positions(shape, cuts.dims, mesh, source, target, digits))
    return Alignment(positions, {axis: tuple(listed.values()) for axis, listed in digits.items()})


def _axis_digits(mesh: Mesh, axis: int, cuts: list[int]) -> dict[int, Digit]:
    """The digits of one axis by the product of the digits outside them."""
    below = prod(mesh.shape[axis + 1 :])
    size = mesh.shape[axis]
    return {outer: Digit(axis, inner // outer, below * (size // inner)) for outer, inner in itertools.pairwise(cuts)}


def _positions(
    shape: tuple[int, ...], cuts: list[set[int]], mesh: Mesh, source: Split, target: Split, digits: dict[int, dict[int, Digit]]
) -> list[Position]:
    positions = []
    for dim, size in enumerate(shape):
        ordered = sorted(cuts[dim])
        labels = [_labels(mesh, split[dim], digits) for split in (source, target)]
        for place, (outer, inner) in enumerate(itertools.pairwise(ordered)):
            positions.append(Position(dim, place, inner // outer, labels[0].get(outer), labels[1].get(outer)))
        positions.append(Position(dim, len(ordered), size // ordered[-1], None, None))
    return positions


def _labels(mesh: Mesh, axes: Axes, digits: dict[int, dict[int, Digit]]) -> dict[int, Digit]:
    """Cut to the digit that begins there, for one dimension of one sharding."""
    labels: dict[int, Digit] = {}
    product = 1
    for axis in axes:
        if mesh.shape[axis] > 1:
            labels |= {product * outer: digit for outer, digit in digits[axis].items()}
        product *= mesh.shape[axis]
    return labels
