"""`raise-collectives`: collectives that the program has of its own become the mesh dialect's, so that the passes see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshbridge.analysis.device_numbers import DeviceNumbers, axes_numbered
from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import AllReduceOp
from meshbridge.ir.builder import Builder, Shape, element_of, shape_of
from meshbridge.ir.device_lists import axes_along, group_positions, rotation
from meshbridge.ir.mlir import find, ir, stablehlo
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class RaiseCollectives(Pass):
    """Writes StableHLO's collectives whose groups lie along mesh axes as those of the mesh dialect.

    Input:   %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 2], [1, 3]]>, use_global_device_ids, …}> ({
               … stablehlo.add …
             }) : (tensor<4xf32>) -> tensor<4xf32>
             %1 = stablehlo.partition_id : tensor<ui32>
             %2 = stablehlo.dynamic_slice %0, (%1 / 2 * 2), sizes = [2] : (tensor<4xf32>, tensor<ui32>) -> tensor<2xf32>
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    Users write them in manual computations (`jax.shard_map`), which are inlined when a program is partitioned. What follows makes
    one collective of those that stood on both sides of the border: a reduce-scatter of a `psum` whose result is resharded, or one
    all-reduce of two over different axes. `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` and rotations are raised;
    groups that divide an axis and reductions by other bodies than one op stay as they are. A `dynamic_slice` at a device's number
    (`lax.axis_index`) is the piece of that device, and a sum of what each device has written at its number, beside zeros, is an
    all-gather.
    """

    name: ClassVar[str] = "raise-collectives"

    def run(self, module: ir.Module) -> bool:
        """Raises OpError where the program is on several meshes."""
        found = [op for op in find(module.operation, _RAISED) if _numbers_partitions(op)]
        numbered = any(True for _ in find(module.operation, ["stablehlo.partition_id"]))
        mesh = find_mesh(module) if found or numbered else None
        if mesh is None:
            return False
        with module.context, ir.Location.unknown():
            changed = sum(_raise(op, mesh) for op in found)
            if numbered:
                numbers = DeviceNumbers(mesh)
                changed += sum(_raise_slice(op, numbers) for op in find(module.operation, [_SLICE]))
                changed += sum(_gather_placed(op, numbers) for op in find(module.operation, [_UPDATE]))
            return changed > 0


_SLICE, _UPDATE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


def _numbers_partitions(op: ir.Operation) -> bool:
    """Whether the groups of a collective list devices by partition, as those of a mesh do."""
    channel = op.attributes.get("channel_handle")
    return (
        channel is not None
        and stablehlo.ChannelHandle(channel).handle > 0
        and ("use_global_device_ids" in op.attributes or op.name in _WITHOUT_FLAG)
    )


_WITHOUT_FLAG = ("stablehlo.all_to_all", "stablehlo.collective_permute")
"""Those that list partitions wherever they have a channel."""


def _raise(op: ir.Operation, mesh: Mesh) -> bool:
    """Replaces a collective by one of the dialect for each of its operands; returns whether there is such."""
    values = [*op.operands, *op.results]
    if any(not isinstance(value.type, ir.RankedTensorType) or DYNAMIC in shape_of(value) for value in values):
        return False
    if any(element_of(operand) != element_of(result) for operand, result in zip(op.operands, op.results, strict=True)):
        return False
    make = _shift(op, mesh) if op.name == _PERMUTE else _grouped(op, mesh)
    if make is None:
        return False
    emit = Builder.before(op)
    for operand, result in zip(op.operands, op.results, strict=True):
        result.replace_all_uses_with(make(operand, emit))
    op.erase()
    return True


_Make = Callable[[ir.Value, Builder], ir.Value]
"""Writes the collective of the dialect for one operand."""


def _shift(op: ir.Operation, mesh: Mesh) -> _Make | None:
    """Where nothing arrives, a permute gives zeros, and a shift that is no rotation what is undefined."""
    if (found := rotation(op.attributes["source_target_pairs"], mesh)) is None:
        return None
    axis, offset = found
    return lambda value, at: build.shift(value, mesh, mesh_axes=(axis,), shift_axis=axis, offset=offset, rotate=True, at=at)


def _grouped(op: ir.Operation, mesh: Mesh) -> _Make | None:
    if (positions := group_positions(op.attributes["replica_groups"], mesh)) is None:
        return None
    in_order = np.sort(positions, axis=1) if op.name == "stablehlo.all_reduce" else positions
    axes = axes_along(in_order, mesh)
    return _GROUPED[op.name](op, mesh, axes) if axes else None


def _all_reduce(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make | None:
    kind = _reduction(op)
    return (lambda value, at: build.all_reduce(value, mesh, mesh_axes=axes, reduction=kind, at=at)) if kind else None


def _reduce_scatter(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make | None:
    kind, dim = _reduction(op), _integer(op, "scatter_dimension")
    if not kind:
        return None
    return lambda value, at: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind, at=at)


def _all_gather(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make:
    dim = _integer(op, "all_gather_dim")
    return lambda value, at: build.all_gather(value, mesh, mesh_axes=axes, gather_axis=dim, at=at)


def _all_to_all(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make:
    split, concat = _integer(op, "split_dimension"), _integer(op, "concat_dimension")
    return lambda value, at: build.all_to_all(value, mesh, mesh_axes=axes, split_axis=split, concat_axis=concat, at=at)


_GROUPED: dict[str, Callable[[ir.Operation, Mesh, Axes], _Make | None]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.reduce_scatter": _reduce_scatter,
}
"""By name, how to write such a collective along these axes; None where its body has no kind of the dialect's."""

_PERMUTE = "stablehlo.collective_permute"
_RAISED = (*_GROUPED, _PERMUTE)


def _reduction(op: ir.Operation) -> str:
    """The kind by which a collective reduces, in the element type of its operands; "" for any other body."""
    kind = body_kind(op)
    reduced = element_of(op.regions[0].blocks[0].arguments[0])
    return kind if all(element_of(operand) == reduced for operand in op.operands) else ""


def _integer(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _raise_slice(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Makes a `dynamic_slice` an `all_slice`, if each device takes its piece of one dimension."""
    whole, starts = op.operands[0], list(op.operands)[1:]
    found = _own_piece(shape_of(whole), shape_of(op.results[0]), starts, numbers)
    if found is None:
        return False
    dim, axes = found
    piece = build.all_slice(whole, numbers.mesh, mesh_axes=axes, slice_axis=dim, at=Builder.before(op))
    op.results[0].replace_all_uses_with(piece)
    op.erase()
    return True


def _gather_placed(op: ir.Operation, numbers: DeviceNumbers) -> bool:
    """Makes an all-gather of the sum over devices, which alone reads `op`, of pieces that each writes at its number into zeros.
    Over the axes that pieces are not numbered along, they are added up before."""
    whole, piece, *starts = op.operands
    users = [use.owner.operation for use in op.results[0].uses]
    if len(users) != 1 or users[0].name != AllReduceOp.OPERATION_NAME or not is_splat(whole, 0):
        return False
    total, mesh = AllReduceOp(users[0]), numbers.mesh
    found = _own_piece(shape_of(whole), shape_of(piece), starts, numbers)
    if found is None or total.reduction != "sum" or not set(found[1]) <= set(total.mesh_axes):
        return False
    dim, axes = found
    left, at = [axis for axis in total.mesh_axes if axis not in axes], Builder.before(users[0])
    if left:
        piece = build.all_reduce(piece, mesh, mesh_axes=left, at=at)
    total.operation.results[0].replace_all_uses_with(build.all_gather(piece, mesh, mesh_axes=axes, gather_axis=dim, at=at))
    users[0].erase()
    op.erase()
    return True


def _own_piece(whole: Shape, piece: Shape, starts: Sequence[ir.Value], numbers: DeviceNumbers) -> tuple[int, Axes] | None:
    """The one dimension of which each device has its piece, and the axes along which devices are numbered for that."""
    cut = [dim for dim, sizes in enumerate(zip(whole, piece, strict=True)) if sizes[0] != sizes[1]]
    if len(cut) != 1 or DYNAMIC in (*whole, *piece) or not piece[cut[0]]:
        return None
    (dim,) = cut
    start, size = numbers.of(starts[dim]), piece[dim]
    if start is None or whole[dim] % size or (start % size).any():
        return None
    mesh, number = numbers.mesh, np.clip(start, 0, whole[dim] - size) // size
    axes = axes_numbered(number, mesh)
    return (dim, axes) if axes and mesh.group_size(axes) * size == whole[dim] else None
