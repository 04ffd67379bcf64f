"""Counts the paths of digits between two aligned splits (`aligned`): a price follows from them without the steps of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.resharding.alignment import common_cuts

SplitDim = tuple[int, Axes, Axes]
"""The size of a dimension, and the axes that split it before and after."""

Path = tuple[int, int]
"""The radix of its digits and of the positions between them, and the number of digits."""


@dataclass
class Paths:
    """Digits are numbered axis after axis, from outer to inner in each."""

    radices: list[int]
    axes: list[int]
    "The axis of each digit."
    source_elements: int
    "Elements of a shard of the source."
    target_elements: int
    "Elements of a shard of the target."
    free: list[int]
    "Per dimension, the part that is local on both sides."
    entries: dict[int, int] = field(default_factory=dict)
    "The digits to slice by, with their radices: the first digit of each path that starts at no position and ends at a local one."
    gathered: set[int] = field(default_factory=set)
    "The dimensions of the positions that become local."
    exchanged: int = 1
    "The product of the radices of the paths between two local positions."
    leaving: list[Path] = field(default_factory=list)
    "The twisted paths that start at a local position."
    crossing: dict[int, Path] = field(default_factory=dict)
    "The twisted paths that start and end at no position, by their first digits."
    turning: list[Path] = field(default_factory=list)
    "The twisted cycles, and the paths that a slice makes cycles."

    def of(self, axes: Axes) -> list[int]:
        """The digits of `axes`, outer to inner."""
        return [number for axis in axes for number, of in enumerate(self.axes) if of == axis]

    def twisted(self, scattered: Collection[int]) -> tuple[Path, ...]:
        """The twisted paths and cycles in plan order, if the digits `scattered` start at positions of their own."""
        from_scattered = [self.crossing[number] for number in scattered if number in self.crossing]
        remaining = [path for number, path in self.crossing.items() if number not in scattered]
        return (*self.leaving, *from_scattered, *remaining, *self.turning)


def paths_between(mesh: Mesh, dims: Sequence[SplitDim]) -> Paths | None:
    """The paths between two splits of a tensor of these dimensions, which both divide evenly; None if they are unaligned."""
    cuts = common_cuts(mesh, [before for _, before, _ in dims], [after for _, _, after in dims])
    if cuts is None:
        return None
    paths = Paths([], [], 1, 1, [size // ends[-1] for (size, _, _), ends in zip(dims, cuts.dims, strict=True)])
    digits: dict[int, list[tuple[int, int]]] = {}
    for axis, ends in cuts.axes.items():
        at = len(paths.axes)
        digits[axis] = [(outer, at + i) for i, outer in enumerate(ends[:-1])]
        paths.axes += [axis] * len(digits[axis])
        paths.radices += [inner // outer for outer, inner in itertools.pairwise(ends)]
    source: dict[tuple[int, int], int] = {}
    target: dict[tuple[int, int], int] = {}
    for dim, (size, before, after) in enumerate(dims):
        paths.source_elements *= size // mesh.group_sizes[before]
        paths.target_elements *= size // mesh.group_sizes[after]
        for labels, axes in ((source, before), (target, after)):
            start = 1
            for axis in axes:
                for outer, number in digits.get(axis, ()):
                    labels[dim, start * outer] = number
                start *= mesh.shape[axis]
    _follow(paths, source, target)
    return paths


def _follow(paths: Paths, source: dict[tuple[int, int], int], target: dict[tuple[int, int], int]) -> None:
    """Adds the paths and cycles of the digits at these positions, in plan order."""
    into = {number: position for position, number in target.items()}
    unvisited = set(source.values())
    leaving = {number: position for position, number in source.items() if position not in target}
    sliced: dict[int, list[int]] = {}  # the paths that a slice makes cycles, by each of their digits
    for start in (*leaving, *[number for number in into if number not in unvisited]):
        digits, position = [start], into.get(start)
        while position in source:
            digits.append(source[position])
            position = into.get(digits[-1])
        radix, length = paths.radices[start], len(digits)
        if start in unvisited:
            if position is None:
                paths.gathered.add(leaving[start][0])
            else:
                paths.exchanged *= radix
            paths.leaving += [(radix, length)] if length > 1 else []
        elif position is not None:
            paths.entries[start] = radix
            sliced |= dict.fromkeys(digits, digits)
            continue
        elif length > 1:
            paths.crossing[start] = (radix, length)
        unvisited.difference_update(digits)
    for start in source.values():
        if start in unvisited:
            digits = sliced.get(start, [start])
            while (number := source[into[digits[-1]]] if start not in sliced else start) != start:
                digits.append(number)
            paths.turning += [(paths.radices[start], len(digits))] if len(digits) > 1 else []
            unvisited.difference_update(digits)
