"""Raises slices that devices read, or write, at their own number (`lax.axis_index`) to the mesh dialect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.analysis.device_numbers import DeviceNumbers, axes_numbered
from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllReduceOp
from meshbridge.ir.builder import Builder, Shape, shape_of
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.uses import sole_user

DEVICE = "stablehlo.partition_id"
_SLICE, _UPDATE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


def raise_device_slices(module: ir.Module, mesh: Mesh) -> bool:
    """Replaces slices at the device's number by `all_slice`, and sums of slices written there into zeros by all-gathers; returns
    whether the program changed."""
    numbers = DeviceNumbers(mesh)
    changed = sum(_raise_slice(op, numbers) for op in find(module.operation, [_SLICE]))
    return changed + sum(_raise_gather(op, numbers) for op in find(module.operation, [_UPDATE])) > 0


def _raise_slice(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Replaces a `dynamic_slice` by an `all_slice`, if each device reads its own part of one dimension."""
    whole, starts = op.operands[0], list(op.operands)[1:]
    dim_and_axes = _device_slice(shape_of(whole), shape_of(op.results[0]), starts, numbers)
    if dim_and_axes is None:
        return False
    dim, axes = dim_and_axes
    piece = build.all_slice(whole, numbers.mesh, mesh_axes=axes, slice_axis=dim, at=Builder.before(op))
    op.results[0].replace_all_uses_with(piece)
    op.erase()
    return True


def _raise_gather(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Replaces the all-reduce that alone reads `op`, in which each device writes its part into zeros at its number, by an
    all-gather. Axes along which the number does not vary are reduced before it."""
    whole, piece, *starts = op.operands
    user = sole_user(op.results[0])
    if user is None or user.name != AllReduceOp.OPERATION_NAME or not is_splat(whole, 0):
        return False
    total, mesh = AllReduceOp(user), numbers.mesh
    dim_and_axes = _device_slice(shape_of(whole), shape_of(piece), starts, numbers)
    if dim_and_axes is None or total.reduction != "sum" or not set(dim_and_axes[1]) <= set(total.mesh_axes):
        return False
    dim, axes = dim_and_axes
    other_axes, at = [axis for axis in total.mesh_axes if axis not in axes], Builder.before(user)
    if other_axes:
        piece = build.all_reduce(piece, mesh, mesh_axes=other_axes, at=at)
    user.results[0].replace_all_uses_with(build.all_gather(piece, mesh, mesh_axes=axes, gather_axis=dim, at=at))
    user.erase()
    op.erase()
    return True


def _device_slice(whole: Shape, piece: Shape, starts: Sequence[ir.Value], numbers: DeviceNumbers) -> tuple[int, Axes] | None:
    """The only divided dimension, if each device has its own part of it, and the axes that number the parts."""
    divided_dims = [dim for dim, sizes in enumerate(zip(whole, piece, strict=True)) if sizes[0] != sizes[1]]
    if len(divided_dims) != 1 or DYNAMIC in (*whole, *piece) or not piece[divided_dims[0]]:
        return None
    (dim,) = divided_dims
    start, size = numbers.of(starts[dim]), piece[dim]
    if start is None or whole[dim] % size or (start % size).any():
        return None
    mesh, number = numbers.mesh, np.clip(start, 0, whole[dim] - size) // size
    axes = axes_numbered(number, mesh)
    return (dim, axes) if axes and mesh.group_size(axes) * size == whole[dim] else None
