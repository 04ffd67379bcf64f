"""Draws shardings as the spec does: the tensor in blocks, each with the devices that hold it.

A device is written as its coordinates on the mesh: `01`, or `0,11` if an axis has more than ten devices. A tensor that is split
along more than two dimensions becomes a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.boxes import DimLayout, layout
from meshbridge.resharding.steps import Shape

_MOST_CELLS = 64
"""The most blocks of a picture, and the most devices in one block."""


def picture(shape: Shape, mesh: Mesh, sharding: Sharding) -> str:
    """The picture of one sharding, as lines of text."""
    dims = layout(shape, mesh, sharding)
    split = [dim for dim, dim_layout in enumerate(dims) if len(dim_layout.owned) > 1]
    cells = 1
    for dim in split:
        cells *= len(dims[dim].owned)
    if cells > _MOST_CELLS:
        return f"{cells} blocks of {'x'.join(str(dim.local) for dim in dims)}"
    if len(split) > 2:
        return _table(mesh, dims, split)
    down, across = _drawn_dims(split)
    return _grid(mesh, dims, down, across)


def _drawn_dims(split: Sequence[int]) -> tuple[int | None, int | None]:
    """The dimensions drawn downwards and across; a single one is drawn downwards if it is dimension 0."""
    if len(split) == 2:
        return split[0], split[1]
    if not split:
        return None, None
    return (split[0], None) if split[0] == 0 else (None, split[0])


def _grid(mesh: Mesh, dims: Sequence[DimLayout], down: int | None, across: int | None) -> str:
    rows, columns = (_blocks(dims, dim) for dim in (down, across))
    blocks = [[{down: row, across: column} for column in range(len(columns))] for row in range(len(rows))]
    texts = [[_holders(mesh, dims, place) for place in line] for line in blocks]
    widths = [max(len(name), *(len(line[i]) for line in texts)) for i, name in enumerate(columns)]
    margin = max(len(name) for name in rows)
    rule = " " * margin + " +" + "+".join("-" * (width + 2) for width in widths) + "+"
    head = [f"tensor axis {across} ->", _padded_line(columns, widths, "   ")] if across is not None else []
    lines = [*(f"{'':{margin}}   {line}" for line in head), rule]
    for name, line in zip(rows, texts, strict=True):
        lines += [f"{name:{margin}} | {_padded_line(line, widths, ' | ')} |", rule]
    if down is not None:
        lines[-1] += f"  tensor axis {down} down"
    return "\n".join(line.rstrip() for line in lines)


def _padded_line(texts: Sequence[str], widths: Sequence[int], between: str) -> str:
    return between.join(f"{text:{width}}" for text, width in zip(texts, widths, strict=True))


def _blocks(dims: Sequence[DimLayout], dim: int | None) -> list[str]:
    """The index ranges of the blocks along a dimension, with halos; one unnamed block for None."""
    if dim is None:
        return [""]
    return [f"{start}:{stop}" for start, stop in dims[dim].kept]


def _holders(mesh: Mesh, dims: Sequence[DimLayout], blocks: dict[int | None, int]) -> str:
    """The devices that hold a block, given by its number along the split dimensions."""
    fixed: dict[int, int] = {}
    for dim, number in blocks.items():
        if dim is not None:
            for axis in reversed(dims[dim].axes):
                number, fixed[axis] = divmod(number, mesh.shape[axis])
    choices = [(fixed[axis],) if axis in fixed else range(size) for axis, size in enumerate(mesh.shape)]
    between = "," if max(mesh.shape, default=1) > 10 else ""
    devices = [between.join(map(str, at)) for at in itertools.islice(itertools.product(*choices), _MOST_CELLS + 1)]
    return " ".join(devices) if len(devices) <= 8 else f"{' '.join(devices[:3])} … {devices[-1]}"


def _table(mesh: Mesh, dims: Sequence[DimLayout], split: Sequence[int]) -> str:
    lines = []
    for numbers in itertools.product(*(range(len(dims[dim].owned)) for dim in split)):
        blocks: dict[int | None, int] = dict(zip(split, numbers, strict=True))
        box = ", ".join(":" if dim not in blocks else _blocks(dims, dim)[blocks[dim]] for dim in range(len(dims)))
        lines.append(f"[{box}] on {_holders(mesh, dims, blocks)}")
    return "\n".join(lines)
