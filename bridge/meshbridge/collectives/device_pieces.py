"""Pieces that devices take, or write, at their number (`lax.axis_index`), in the words of the mesh dialect."""

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


def raise_pieces(module: ir.Module, mesh: Mesh) -> bool:
    """Makes slices that devices take at their number `all_slice`, and all-gathers of sums of what they write there into zeros;
    returns whether there was any."""
    numbers = DeviceNumbers(mesh)
    changed = sum(_raise_slice(op, numbers) for op in find(module.operation, [_SLICE]))
    return changed + sum(_gather_placed(op, numbers) for op in find(module.operation, [_UPDATE])) > 0


def _raise_slice(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Makes a `dynamic_slice` an `all_slice`, if each device takes its piece of one dimension."""
    whole, starts = op.operands[0], list(op.operands)[1:]
    dim_and_axes = _own_piece(shape_of(whole), shape_of(op.results[0]), starts, numbers)
    if dim_and_axes is None:
        return False
    dim, axes = dim_and_axes
    piece = build.all_slice(whole, numbers.mesh, mesh_axes=axes, slice_axis=dim, at=Builder.before(op))
    op.results[0].replace_all_uses_with(piece)
    op.erase()
    return True


def _gather_placed(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Makes an all-gather of the sum over devices, which alone reads `op`, of pieces that each writes at its number into zeros.
    Over the axes that pieces are not numbered along, they are added up before."""
    whole, piece, *starts = op.operands
    user = sole_user(op.results[0])
    if user is None or user.name != AllReduceOp.OPERATION_NAME or not is_splat(whole, 0):
        return False
    total, mesh = AllReduceOp(user), numbers.mesh
    dim_and_axes = _own_piece(shape_of(whole), shape_of(piece), starts, numbers)
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


def _own_piece(whole: Shape, piece: Shape, starts: Sequence[ir.Value], numbers: DeviceNumbers) -> tuple[int, Axes] | None:
    """The one dimension of which each device has its piece, and the axes along which devices are numbered for that."""
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
