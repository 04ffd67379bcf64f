"""Draws meshes and shardings: a grid of blocks, each with the devices that hold it.

    P("data", None) on data=2, model=2          +-----+-----+
                                                | 0 1 |         rows: dimension 0, in 2 along data
                                                | 2 3 |
                                                +-----+-----+

A picture has rows and columns, and panels if three or more dimensions are split. Too many of them are left out.
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
"""The most rows and columns of a panel, and the most panels."""

MOST_NAMED = 64
"""A block with more devices shows their number instead of their ids."""

_WIDTH, _HEIGHT = 300, 120
"""Pixels of a panel, unless its cells have their largest or smallest size."""

_CELL_WIDTH, _CELL_HEIGHT = (58, 190), (26, 60)
"""The least and the most pixels of a cell."""

_CHARACTER = 6.4
"""Pixels of a character in a cell, on average."""


@dataclass(frozen=True)
class Cell:
    """One block, in pixels of its panel."""

    x: float
    y: float
    lines: tuple[str, ...]
    "The text that fits into it."
    title: str
    "The whole text."
    shade: int
    "The hue; equal blocks of one picture have the same."


@dataclass(frozen=True)
class Picture:
    """Panels of cells of one size, and captions for the directions."""

    panels: tuple[tuple[Cell, ...], ...]
    width: float
    "The width of a panel, as `height` is its height."
    height: float
    cell_width: float
    cell_height: float
    captions: tuple[str, ...]
    "A line for each direction, and for omitted cells."


@dataclass(frozen=True)
class ArrayRow:
    """A table row for an argument or result."""

    name: str
    type: str
    shard: str
    size: float | None
    "Bytes of a shard; None for elements without a size."
    is_uneven: bool


@dataclass(frozen=True)
class ShardingGroup:
    """A sharding, and the arrays that have it."""

    spec: str
    "In JAX's spelling."
    holdings: tuple[ArrayRow, ...]
    picture: Picture


@dataclass(frozen=True)
class _Direction:
    """A direction of a picture: the number of blocks along it, and each device's block number."""

    numbers: np.ndarray[Any, Any]
    count: int
    caption: str


class Devices:
    """The devices of a mesh, from a report's JSON."""

    def __init__(self, mesh: Mapping[str, Any]) -> None:
        self.axes: dict[str, int] = mesh["axes"]
        size = mesh["devices"]
        self.ids = np.array(mesh["device_ids"] or range(size))
        coordinates = np.unravel_index(np.arange(size), tuple(self.axes.values())) if self.axes else ()
        self._coordinates = dict(zip(self.axes, coordinates, strict=True))

    def picture(self) -> Picture:
        """A picture of the mesh: the last axis to the right, the one before it downwards, the others as panels."""
        axes = list(self.axes)
        directions = [self._along(chosen) for chosen in (axes[:-2], axes[-2:-1], axes[-1:])]
        return self._draw(directions, is_shaded=False)

    def _along(self, axes: Sequence[str]) -> _Direction:
        labels = ", ".join(f"{name} = {self.axes[name]}" for name in axes)
        return _Direction(self._numbers(axes), prod(self.axes[name] for name in axes), f"axis {labels}" if axes else "")

    def sharded(self, arrays: Sequence[Mapping[str, Any]], called: str) -> Iterator[ShardingGroup]:
        """Groups arrays by sharding; the shardings of most bytes come first. An array without a name gets the name `called` and
        its number."""
        alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for number, array in enumerate(arrays):
            key = (tuple(map(tuple, array["sharding"])), tuple(array["unreduced"]))
            alike.setdefault(key, []).append({**array, "name": array["name"] or f"{called} {number}"})
        shardings = [(split, unreduced, tuple(map(self._array_row, group))) for (split, unreduced), group in alike.items()]
        for split, unreduced, holdings in sorted(
            shardings, key=lambda sharding: -sum(holding.size or 0 for holding in sharding[2])
        ):
            yield ShardingGroup(self.spec(split, unreduced), holdings, self._sharding(split, unreduced))

    def _array_row(self, array: Mapping[str, Any]) -> ArrayRow:
        shape, shard, kind = array["shape"], array["shard_shape"], array["element_type"]
        try:
            size = prod(shard) * element_bytes(kind)
        except MeshError:  # elements without a size, such as keys
            size = None
        parts = (part * prod(map(self._size, axes)) for part, axes in zip(shard, array["sharding"], strict=True))
        return ArrayRow(array["name"], _type_text(shape, kind), _type_text(shard, kind), size, list(parts) != list(shape))

    def spec(self, split: Iterable[Sequence[str]], unreduced: Sequence[str]) -> str:
        """A sharding in JAX's spelling, `P("data", None)`; a sub-axis in Shardy's, `"x":(1)2`."""
        terms = (f"unreduced={{{', '.join(map(self._quoted, unreduced))}}}",) if unreduced else ()
        return spec_text(([self._quoted(axis) for axis in axes] for axes in split), *terms)

    def _quoted(self, label: str) -> str:
        name, part = self._axis(label)
        return f'"{name}"{part}'

    def _axis(self, label: str) -> tuple[str, str]:
        """Splits a label, `x` or `x:(2)4`, into the name of the axis and the sub-axis."""
        if label in self.axes:
            return label, ""
        name, colon, part = label.rpartition(":")
        return name, colon + part

    def _sharding(self, split: Sequence[Sequence[str]], unreduced: Sequence[str]) -> Picture:
        dims = [dim for dim, axes in enumerate(split) if axes]
        rows, columns = (dims[:1], dims[1:2]) if len(dims) > 1 or (dims == [0] and len(split) > 1) else ([], dims)
        directions = [self._splits(split, chosen) for chosen in (dims[2:], rows, columns)]
        return self._draw(directions, is_shaded=True, unreduced=unreduced)

    def _splits(self, split: Sequence[Sequence[str]], dims: Sequence[int]) -> _Direction:
        axes = [label for dim in dims for label in split[dim]]
        numbers, count = self._numbers(axes), prod(map(self._size, axes))
        captions = (f"dimension {dim} in {prod(map(self._size, split[dim]))} along {', '.join(split[dim])}" for dim in dims)
        return _Direction(numbers, count, "; ".join(captions))

    def _numbers(self, labels: Sequence[str]) -> np.ndarray[Any, Any]:
        """Each device's block number, if a dimension is split along the axes of these labels, outer first."""
        numbers = np.zeros(len(self.ids), np.int64)
        for label in labels:
            name, part = self._axis(label)
            digit = self._coordinates[name]
            if part:
                digit = digit // (self.axes[name] // prod(_factors(part)))
            size = self._size(label)
            numbers = numbers * size + digit % size
        return numbers

    def _size(self, label: str) -> int:
        name, part = self._axis(label)
        return _factors(part)[1] if part else self.axes[name]

    def _draw(self, directions: Sequence[_Direction], *, is_shaded: bool, unreduced: Sequence[str] = ()) -> Picture:
        panels, rows, columns = (
            min(direction.count, most) for direction, most in zip(directions, (MOST_PANELS, MOST_CELLS, MOST_CELLS), strict=True)
        )
        width, height = (
            max(least, min(most, room / count))
            for (least, most), room, count in ((_CELL_WIDTH, _WIDTH, columns), (_CELL_HEIGHT, _HEIGHT, rows))
        )
        members = self._members(directions)
        counts = tuple(direction.count for direction in directions)

        def cell(panel: int, row: int, column: int) -> Cell:
            number = int(np.ravel_multi_index((panel, row, column), counts))
            lines = _fit(members(number), int(width / _CHARACTER), int(height / 13))
            shade = number % len(_SHADES) if is_shaded else 0
            return Cell(column * width, row * height, lines, _devices_text(members(number)), _SHADES[shade])

        drawn = tuple(
            tuple(cell(panel, row, column) for row in range(rows) for column in range(columns)) for panel in range(panels)
        )
        captions = _captions(directions, (panels, rows, columns), unreduced)
        return Picture(drawn, columns * width, rows * height, width, height, tuple(captions))

    def _members(self, directions: Sequence[_Direction]) -> Any:
        """A function from the number of a block to its devices."""
        numbers = np.ravel_multi_index(
            [direction.numbers for direction in directions], [direction.count for direction in directions]
        )
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(prod(direction.count for direction in directions) + 1))
        return lambda number: self.ids[order[ends[number] : ends[number + 1]]]


_SHADES = tuple(round(step * 137.5) % 360 for step in range(64))
"""Hues; neighbours are far apart."""


def _factors(part: str) -> tuple[int, int]:
    """The pre-size and the size of a sub-axis `:(2)4`."""
    parsed = re.fullmatch(r":\((\d+)\)(\d+)", part)
    assert parsed is not None, part
    return int(parsed[1]), int(parsed[2])


def _captions(directions: Sequence[_Direction], drawn: Sequence[int], unreduced: Sequence[str]) -> Iterator[str]:
    for name, direction, count in zip(("panels", "rows", "columns"), directions, drawn, strict=True):
        if direction.caption:
            remark = f", of which {count} are drawn" if count < direction.count else ""
            yield f"{name}: {direction.caption}{remark}"
    if unreduced:
        yield f"terms of a sum along {', '.join(unreduced)}: devices of one block hold different terms"


def _runs(devices: np.ndarray[Any, Any]) -> list[str]:
    """Ranges of consecutive devices: `0, 1` or `4` to `7`."""
    ends = np.flatnonzero(np.diff(devices) != 1)
    firsts, lasts = devices[[0, *(ends + 1)]], devices[[*ends, -1]]
    return [
        f"{start}" if start == end else f"{start}, {end}" if start + 1 == end else f"{start}\N{EN DASH}{end}"
        for start, end in zip(firsts, lasts, strict=True)
    ]


def _devices_text(devices: np.ndarray[Any, Any]) -> str:
    return (
        f"device{'s' if len(devices) > 1 else ''} {', '.join(_runs(devices))}"
        if len(devices) <= MOST_NAMED
        else (f"{len(devices)} devices: {', '.join(map(str, devices[:8]))}, \N{HORIZONTAL ELLIPSIS}")
    )


def _fit(devices: np.ndarray[Any, Any], characters: int, lines: int) -> tuple[str, ...]:
    """The devices on `lines` lines of `characters` characters, or their number if they do not fit."""
    text_lines = [""]
    for run in _runs(devices) if len(devices) <= MOST_NAMED else [""]:
        extended = f"{text_lines[-1]}, {run}" if text_lines[-1] else run
        if len(extended) <= characters:
            text_lines[-1] = extended
        else:
            text_lines[-1] += ","
            text_lines.append(run)
    fits = len(devices) <= MOST_NAMED and len(text_lines) <= lines and all(len(line) <= characters + 1 for line in text_lines)
    return tuple(text_lines) if fits else (f"{len(devices):,} dev.",)


def _type_text(shape: Sequence[int], kind: str) -> str:
    """`f32[8,16]`, JAX's spelling of a type."""
    return f"{kind}[{','.join(map(str, shape))}]"
