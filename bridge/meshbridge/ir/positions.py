"""Where a device stands in the mesh, as integer arithmetic on its logical number (see `groups`).

Everything is `tensor<i32>`. Nothing here grows with the number of devices, except the one table that a mesh with a permuted
device order needs to get from logical numbers back to positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.groups import Form
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Mesh


@dataclass
class Positions:
    """This device's indices, computed once per block: one is emitted where it is first needed and serves all later uses."""

    form: Form
    _known: dict[tuple[str, Axes], ir.Value] = field(default_factory=dict)

    def linear(self, mesh: Mesh, emit: Builder) -> ir.Value:
        """Row-major position of this device in the mesh."""
        return self._once((mesh.name, tuple(range(mesh.rank))), lambda: self._linear(mesh, emit))

    def in_group(self, mesh: Mesh, axes: Axes, emit: Builder) -> ir.Value:
        """Number of this device within its group along `axes`, outer to inner."""
        linear = self.linear(mesh, emit)
        return self._once((mesh.name, axes), lambda: in_group_index(linear, mesh, axes, emit))

    def _once(self, key: tuple[str, Axes], compute: Callable[[], ir.Value]) -> ir.Value:
        if (found := self._known.get(key)) is None:
            found = self._known[key] = compute()
        return found

    def _linear(self, mesh: Mesh, emit: Builder) -> ir.Value:
        name = "partition_id" if self.form == "exported" else "replica_id"
        i32 = ir.IntegerType.get_signless(32)
        number = emit.value(name, tensor([], ir.IntegerType.get_unsigned(32)), [])
        logical = emit.convert(number, i32)
        if not mesh.device_ids:
            return logical
        table = np.empty(mesh.size, np.int32)
        table[list(mesh.device_ids)] = np.arange(mesh.size, dtype=np.int32)
        return emit.reshape(emit.dynamic_slice(emit.table(table), 0, logical, 1), [])


def strides(mesh: Mesh) -> list[int]:
    """How far apart in row-major order neighbours along each axis are."""
    return [prod(mesh.shape[axis + 1 :]) for axis in range(mesh.rank)]


def in_group_index(linear: ir.Value, mesh: Mesh, axes: Axes, emit: Builder) -> ir.Value:
    """The number within its group along `axes` of the device at position `linear`."""
    index: ir.Value | None = None
    for run in _adjacent_runs(axes):
        part = _digits(linear, mesh, run, emit)
        size = mesh.group_size(run)
        index = part if index is None else emit.add(emit.multiply(index, size), part)
    return emit.scalar(0) if index is None else index


def _adjacent_runs(axes: Axes) -> list[Axes]:
    """Splits `axes` where the next one is not the next mesh axis: [0, 1, 3] -> [0, 1], [3]. One division serves a whole run."""
    runs: list[Axes] = []
    for axis in axes:
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def _digits(linear: ir.Value, mesh: Mesh, run: Axes, emit: Builder) -> ir.Value:
    """(linear / stride) % size of a run of adjacent axes, leaving out what changes nothing."""
    stride, size = strides(mesh)[run[-1]], mesh.group_size(run)
    if size == 1:
        return emit.scalar(0)
    if stride > 1:
        linear = emit.elementwise("divide", linear, stride)
    if stride * size < mesh.size:
        linear = emit.elementwise("remainder", linear, size)
    return linear
