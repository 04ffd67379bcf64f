"""The coarsest mesh of axes that expresses all tilings of a module.

A tile assignment puts device numbers on a grid of tiles. Walking along one dimension of that grid, a mesh shows as steps of
constant stride: in `devices=[4,2]<=[2,4]T(1,0)` dimension 0 has 4 devices with stride 1, dimension 1 has 2 with stride 4.
Each such run is a sub-axis of the line of all devices. Dividing the line where some run starts or ends, and nowhere else, gives
the coarsest mesh: 2x4 here.

The line is 0, 1, 2, … if that expresses all tilings; otherwise it is the order in which one of the tilings lists the devices,
the one that needs the fewest axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from meshbridge.ir.sharding import Axes, AxisRef, Mesh
from meshbridge.ir.subaxes import factor
from meshbridge_converters.hlo_shardings import Tiling

LINE = ""
"""The name of the axis of all devices, before it is divided."""

Grid = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Placed:
    """A tiling in terms of mesh axes: what splits each tensor dimension, and what each subgroup is made of."""

    split: tuple[Axes, ...]
    subgroups: tuple[tuple[str, Axes], ...]


@dataclass
class InferredMesh:
    """The mesh: `shape`, the devices in row-major order, and the sharding of each tiling on it."""

    line: tuple[int, ...]
    factored: Mesh
    walks: dict[Tiling, list[list[AxisRef]]] = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factored.shape

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Empty where the devices are in order."""
        return () if self.line == tuple(range(len(self.line))) else self.line

    def place(self, tiling: Tiling) -> Placed:
        """The sharding on the mesh of a tiling that it was inferred from."""
        dims = [tuple(axis for ref in refs for axis in self.factored.axes_of(ref)) for refs in self.walks[tiling]]
        rank = len(tiling.tiles)
        kinds = [kind for kind, _ in tiling.subgroups]
        return Placed(tuple(dims[:rank]), tuple(zip(kinds, dims[rank:], strict=True)))


def infer(tilings: Iterable[Tiling], devices: int) -> InferredMesh:
    """The coarsest mesh of `devices` devices for the tiled ones among `tilings`.

    Raises ValueError where there is none.
    """
    tiled = [tiling for tiling in dict.fromkeys(tilings) if tiling.kind == "tiled"]
    for tiling in tiled:
        if len(tiling.devices) != devices:
            raise ValueError(f"{describe(tiling)} has {len(tiling.devices)} devices, expected {devices}")
    try:
        return _on_line(tiled, tuple(range(devices)))
    except ValueError as error:
        found = [mesh for line in dict.fromkeys(tiling.devices for tiling in tiled) if (mesh := _if_any(tiled, line))]
        if not found:
            raise error from None
    return min(found, key=lambda mesh: len(mesh.shape))


def _if_any(tiled: Sequence[Tiling], line: tuple[int, ...]) -> InferredMesh | None:
    try:
        return _on_line(tiled, line)
    except ValueError:
        return None


def describe(tiling: Tiling) -> str:
    """A tiling for a diagnostic."""
    listed = ",".join(map(str, tiling.devices[:16])) + (",…" if len(tiling.devices) > 16 else "")
    dims = ",".join(map(str, (*tiling.tiles, *(size for _, size in tiling.subgroups))))
    return f"devices=[{dims}]{listed}"


def _on_line(tiled: Sequence[Tiling], line: tuple[int, ...]) -> InferredMesh:
    position = np.empty(len(line), dtype=np.int64)
    position[list(line)] = np.arange(len(line))
    walks = {tiling: _walks(tiling, position) for tiling in tiled}
    used = [ref for refs in walks.values() for dim in refs for ref in dim]
    try:
        return InferredMesh(line, factor([(LINE, len(line))], used), walks)
    except ValueError:
        raise ValueError("the tilings of the module cannot all be expressed by axes of one mesh") from None


def _walks(tiling: Tiling, position: Grid) -> list[list[AxisRef]]:
    """Per dimension of the grid, the sub-axes of the line that it is sharded along, outer to inner.

    Raises ValueError where a dimension has no constant strides, or the dimensions are not independent.
    """
    grid = position[list(tiling.devices)].reshape((*tiling.tiles, *(size for _, size in tiling.subgroups)))
    for dim, (kind, _) in enumerate(tiling.subgroups, len(tiling.tiles)):
        if kind != "manual":  # a set of devices that hold the same, or parts of one sum: without order
            grid = np.sort(grid, axis=dim)
    steps = [grid[(0,) * dim + (slice(None),) + (0,) * (grid.ndim - dim - 1)] for dim in range(grid.ndim)]
    strides = [_strides(walk.tolist()) for walk in steps]
    if not np.array_equal(reduce(np.add.outer, steps), grid) or grid.flat[0]:
        raise ValueError(f"{describe(tiling)} is not a mesh of axes")
    for walk in strides:
        if walk is None:
            raise ValueError(f"{describe(tiling)} is not a mesh of axes")
    count = len(position)
    return [[AxisRef(LINE, count // (size * stride), size) for size, stride in walk or ()] for walk in strides]


def _strides(walk: Sequence[int]) -> list[tuple[int, int]] | None:
    """Size and stride of each factor of a run that starts at 0, outer to inner; None where it has no constant strides."""
    if len(walk) == 1:
        return []
    stride, size = walk[1] - walk[0], 1
    while size < len(walk) and walk[size] - walk[0] == size * stride:
        size += 1
    if stride <= 0 or len(walk) % size:
        return None
    outer = walk[::size]
    if any(walk[index] != outer[index // size] + index % size * stride for index in range(len(walk))):
        return None
    rest = _strides(outer)
    return None if rest is None else [*rest, (size, stride)]
