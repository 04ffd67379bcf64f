"""Pictures of meshes and shardings: a grid of blocks, and in each the devices that hold it.

    P("data", None) on data=2, model=2          +-----+-----+
                                                | 0 1 |         rows: dimension 0, in 2 along data
                                                | 2 3 |
                                                +-----+-----+

A picture has rows, columns and, where three or more dimensions are split, panels. It is cut where it would have too many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import MeshError
from meshbridge.text import spec_text

MOST_CELLS, MOST_PANELS = 16, 4
"""Rows and columns of a panel, and panels, beyond which a picture is cut."""

MOST_NAMED = 64
"""Devices of one block beyond which it says how many there are instead of which."""

_WIDTH, _HEIGHT = 300, 120
"""Pixels of a panel whose cells are neither at their largest nor at their smallest."""

_CELL_WIDTH, _CELL_HEIGHT = (58, 190), (26, 60)
"""Pixels that a cell has at least and at most."""

_CHARACTER = 6.4
"""Pixels of a character in a cell, on average."""


@dataclass(frozen=True)
class Cell:
    """One block, in pixels of its panel."""

    x: float
    y: float
    lines: tuple[str, ...]
    "What fits into it."
    title: str
    "All of it."
    shade: int
    "Equal for equal blocks of one picture."


@dataclass(frozen=True)
class Picture:
    """Panels of cells of one size, and what its directions mean."""

    panels: tuple[tuple[Cell, ...], ...]
    width: float
    "Of a panel; so is `height`."
    height: float
    cell_width: float
    cell_height: float
    captions: tuple[str, ...]
    "A line for each direction, and for what is left out."


@dataclass(frozen=True)
class Holding:
    """An argument or result, as a line of a table."""

    name: str
    type: str
    shard: str
    size: float | None
    "Bytes of a shard; None for elements without a size."
    is_uneven: bool


@dataclass(frozen=True)
class Sharded:
    """A sharding, and what has it."""

    spec: str
    "As JAX writes it."
    holdings: tuple[Holding, ...]
    picture: Picture


@dataclass(frozen=True)
class _Direction:
    """A direction of a picture: by device, the number of its block along it, of so many."""

    numbers: np.ndarray[Any, Any]
    count: int
    caption: str


class Devices:
    """The devices of a mesh, as a report's JSON has it."""

    def __init__(self, mesh: Mapping[str, Any]) -> None:
        self.axes: dict[str, int] = mesh["axes"]
        size = mesh["devices"]
        self.ids = np.array(mesh["device_ids"] or range(size))
        coordinates = np.unravel_index(np.arange(size), tuple(self.axes.values())) if self.axes else ()
        self._coordinates = dict(zip(self.axes, coordinates, strict=True))

    def picture(self) -> Picture:
        """The mesh: the last axis to the right, the one before it downwards, the others as panels."""
        axes = list(self.axes)
        directions = [self._along(chosen) for chosen in (axes[:-2], axes[-2:-1], axes[-1:])]
        return self._drawn(directions, is_shaded=False)

    def _along(self, axes: Sequence[str]) -> _Direction:
        labels = ", ".join(f"{name} = {self.axes[name]}" for name in axes)
        return _Direction(self._numbers(axes), prod(self.axes[name] for name in axes), f"axis {labels}" if axes else "")

    def sharded(self, held: Sequence[Mapping[str, Any]], called: str) -> Iterator[Sharded]:
        """What is held, by sharding; first the shardings of which devices hold most. What has no name is `called` something and
        its number."""
        alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for number, each in enumerate(held):
            key = (tuple(map(tuple, each["sharding"])), tuple(each["unreduced"]))
            alike.setdefault(key, []).append({**each, "name": each["name"] or f"{called} {number}"})
        found = [(split, unreduced, tuple(map(self._holding, group))) for (split, unreduced), group in alike.items()]
        for split, unreduced, holdings in sorted(found, key=lambda each: -sum(one.size or 0 for one in each[2])):
            yield Sharded(self.spec(split, unreduced), holdings, self._sharding(split, unreduced))

    def _holding(self, held: Mapping[str, Any]) -> Holding:
        shape, shard, kind = held["shape"], held["shard_shape"], held["element_type"]
        try:
            size = prod(shard) * element_bytes(kind)
        except MeshError:  # of keys, for one
            size = None
        parts = (part * prod(map(self._size, axes)) for part, axes in zip(shard, held["sharding"], strict=True))
        return Holding(held["name"], _type_text(shape, kind), _type_text(shard, kind), size, list(parts) != list(shape))

    def spec(self, split: Iterable[Sequence[str]], unreduced: Sequence[str]) -> str:
        """`P("data", None)`, as JAX writes it; a sub-axis as Shardy does, `"x":(1)2`."""
        terms = (f"unreduced={{{', '.join(map(self._quoted, unreduced))}}}",) if unreduced else ()
        return spec_text(([self._quoted(axis) for axis in axes] for axes in split), *terms)

    def _quoted(self, label: str) -> str:
        name, part = self._axis(label)
        return f'"{name}"{part}'

    def _axis(self, label: str) -> tuple[str, str]:
        """The name of an axis, and which part of it a label means: `x`, `x:(2)4`."""
        if label in self.axes:
            return label, ""
        name, colon, part = label.rpartition(":")
        return name, colon + part

    def _sharding(self, split: Sequence[Sequence[str]], unreduced: Sequence[str]) -> Picture:
        dims = [dim for dim, axes in enumerate(split) if axes]
        rows, columns = (dims[:1], dims[1:2]) if len(dims) > 1 or (dims == [0] and len(split) > 1) else ([], dims)
        directions = [self._splits(split, chosen) for chosen in (dims[2:], rows, columns)]
        return self._drawn(directions, is_shaded=True, unreduced=unreduced)

    def _splits(self, split: Sequence[Sequence[str]], dims: Sequence[int]) -> _Direction:
        axes = [label for dim in dims for label in split[dim]]
        numbers, count = self._numbers(axes), prod(map(self._size, axes))
        said = (f"dimension {dim} in {prod(map(self._size, split[dim]))} along {', '.join(split[dim])}" for dim in dims)
        return _Direction(numbers, count, "; ".join(said))

    def _numbers(self, labels: Sequence[str]) -> np.ndarray[Any, Any]:
        """By device, the number of its block where one dimension is split along axes of these labels, outer first."""
        found = np.zeros(len(self.ids), np.int64)
        for label in labels:
            name, part = self._axis(label)
            digit = self._coordinates[name]
            if part:
                digit = digit // (self.axes[name] // prod(_factors(part)))
            size = self._size(label)
            found = found * size + digit % size
        return found

    def _size(self, label: str) -> int:
        name, part = self._axis(label)
        return _factors(part)[1] if part else self.axes[name]

    def _drawn(self, directions: Sequence[_Direction], *, is_shaded: bool, unreduced: Sequence[str] = ()) -> Picture:
        panels, rows, columns = (
            min(each.count, most) for each, most in zip(directions, (MOST_PANELS, MOST_CELLS, MOST_CELLS), strict=True)
        )
        width, height = (
            max(least, min(most, room / count))
            for (least, most), room, count in ((_CELL_WIDTH, _WIDTH, columns), (_CELL_HEIGHT, _HEIGHT, rows))
        )
        members = self._members(directions)
        counts = tuple(each.count for each in directions)

        def cell(panel: int, row: int, column: int) -> Cell:
            number = int(np.ravel_multi_index((panel, row, column), counts))
            lines = _fitted(members(number), int(width / _CHARACTER), int(height / 13))
            shade = number % len(_SHADES) if is_shaded else 0
            return Cell(column * width, row * height, lines, _devices_text(members(number)), _SHADES[shade])

        drawn = tuple(
            tuple(cell(panel, row, column) for row in range(rows) for column in range(columns)) for panel in range(panels)
        )
        captions = _captions(directions, (panels, rows, columns), unreduced)
        return Picture(drawn, columns * width, rows * height, width, height, tuple(captions))

    def _members(self, directions: Sequence[_Direction]) -> Any:
        """What gives the devices of a block by its number."""
        numbers = np.ravel_multi_index([each.numbers for each in directions], [each.count for each in directions])
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(prod(each.count for each in directions) + 1))
        return lambda number: self.ids[order[ends[number] : ends[number + 1]]]


_SHADES = tuple(round(step * 137.5) % 360 for step in range(64))
"""Hues that are far apart for neighbours."""


def _factors(part: str) -> tuple[int, int]:
    """Of a sub-axis `:(2)4`: what is outside of it, and its size."""
    found = re.fullmatch(r":\((\d+)\)(\d+)", part)
    assert found is not None, part
    return int(found[1]), int(found[2])


def _captions(directions: Sequence[_Direction], drawn: Sequence[int], unreduced: Sequence[str]) -> Iterator[str]:
    for name, each, count in zip(("panels", "rows", "columns"), directions, drawn, strict=True):
        if each.caption:
            cut = f", of which {count} are drawn" if count < each.count else ""
            yield f"{name}: {each.caption}{cut}"
    if unreduced:
        yield f"terms of a sum along {', '.join(unreduced)}: devices of one block hold different terms"


def _runs(devices: np.ndarray[Any, Any]) -> list[str]:
    """Devices that follow each other together, as in `0, 1` and `4` to `7`."""
    ends = np.flatnonzero(np.diff(devices) != 1)
    firsts, lasts = devices[[0, *(ends + 1)]], devices[[*ends, -1]]
    return [
        f"{first}" if first == last else f"{first}, {last}" if first + 1 == last else f"{first}\N{EN DASH}{last}"
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _devices_text(devices: np.ndarray[Any, Any]) -> str:
    return (
        f"device{'s' if len(devices) > 1 else ''} {', '.join(_runs(devices))}"
        if len(devices) <= MOST_NAMED
        else (f"{len(devices)} devices: {', '.join(map(str, devices[:8]))}, \N{HORIZONTAL ELLIPSIS}")
    )


def _fitted(devices: np.ndarray[Any, Any], characters: int, lines: int) -> tuple[str, ...]:
    """The devices on so many lines of so many characters; their number where they do not fit."""
    found = [""]
    for run in _runs(devices) if len(devices) <= MOST_NAMED else [""]:
        joined = f"{found[-1]}, {run}" if found[-1] else run
        if len(joined) <= characters:
            found[-1] = joined
        else:
            found[-1] += ","
            found.append(run)
    fits = len(devices) <= MOST_NAMED and len(found) <= lines and all(len(line) <= characters + 1 for line in found)
    return tuple(found) if fits else (f"{len(devices):,} dev.",)


def _type_text(shape: Sequence[int], kind: str) -> str:
    """`f32[8,16]`, as JAX writes types."""
    return f"{kind}[{','.join(map(str, shape))}]"
