"""`raise-collectives`: raises StableHLO collectives of the program to the mesh dialect, so that passes can optimize them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshbridge.collectives.device_slices import DEVICE, raise_device_slices
from meshbridge.collectives.replicated_reductions import drop_replicated_axes
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of
from meshbridge.ir.device_lists import axes_along, group_positions, rotation
from meshbridge.ir.mlir import find, ir, stablehlo
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.registry import Registry
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class RaiseCollectives(Pass):
    """Raises StableHLO collectives whose groups lie along mesh axes to the mesh dialect.

    Input:   %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 2], [1, 3]]>, use_global_device_ids, …}> ({
               … stablehlo.add …
             }) : (tensor<4xf32>) -> tensor<4xf32>
             %1 = stablehlo.partition_id : tensor<ui32>
             %2 = stablehlo.dynamic_slice %0, (%1 / 2 * 2), sizes = [2] : (tensor<4xf32>, tensor<ui32>) -> tensor<2xf32>
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>

    Users write them in manual computations (`jax.shard_map`), which are inlined when a program is partitioned. Later passes then
    combine collectives across the boundary: a reduce-scatter for a `psum` whose result is resharded, or one all-reduce for two
    over different axes. `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` and rotations are raised; collectives whose
    groups divide an axis, or whose body is not one op, do not change. A `dynamic_slice` at a device's number (`lax.axis_index`)
    becomes that device's slice, and a sum of values that each device writes into zeros at its number becomes an all-gather. Sums
    of replicated values, which the partitioner never creates, become multiplications.
    """

    name: ClassVar[str] = "raise-collectives"

    def run(self, module: ir.Module) -> bool:
        """Raises OpError if the program is on several meshes."""
        own = find(module.operation, (*_RAISED, DEVICE))
        mesh = find_mesh(module) if own else None
        if mesh is None:
            return False
        reads_number = any(op.name == DEVICE for op in own)
        with module.context, ir.Location.unknown():
            raised = [op_of(value) for op in own if _numbers_partitions(op) for value in _raise(op, mesh)]
        if reductions := [op for op in raised if op.name in (AllReduceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME)]:
            with rewriting(MeshRewriter, module) as rewriter:
                for op in reductions:
                    drop_replicated_axes(op, rewriter)
        with module.context, ir.Location.unknown():
            return (reads_number and raise_device_slices(module, mesh)) or bool(raised)


def _numbers_partitions(op: ir.Operation) -> bool:
    """True if the groups of a collective list devices by partition, as those of a mesh do."""
    channel = op.attributes.get("channel_handle")
    return (
        channel is not None
        and stablehlo.ChannelHandle(channel).handle > 0
        and ("use_global_device_ids" in op.attributes or op.name in _WITHOUT_FLAG)
    )


_WITHOUT_FLAG = ("stablehlo.all_to_all", "stablehlo.collective_permute")
"""Collectives that list partitions whenever they have a channel."""


def _raise(op: ir.Operation, mesh: Mesh) -> list[ir.Value]:
    """Replaces a collective by one of the mesh dialect per operand, and returns their results; none if it cannot be raised."""
    values = [*op.operands, *op.results]
    if any(not isinstance(value.type, ir.RankedTensorType) or DYNAMIC in shape_of(value) for value in values):
        return []
    if any(element_of(operand) != element_of(result) for operand, result in zip(op.operands, op.results, strict=True)):
        return []
    make = _shift(op, mesh) if op.name == _PERMUTE else _grouped(op, mesh)
    if make is None:
        return []
    builder = Builder.before(op)
    new_results = [make(operand, builder) for operand in op.operands]
    for new_result, result in zip(new_results, op.results, strict=True):
        result.replace_all_uses_with(new_result)
    op.erase()
    return new_results


_Make = Callable[[ir.Value, Builder], ir.Value]
"""Builds the collective of the mesh dialect for one operand."""


def _shift(op: ir.Operation, mesh: Mesh) -> _Make | None:
    """A permute returns zeros on devices that receive nothing, but a shift is undefined there, so only rotations are raised."""
    axis_and_offset = rotation(op.attributes["source_target_pairs"], mesh)
    if axis_and_offset is None:
        return None
    axis, offset = axis_and_offset
    return lambda value, at: build.shift(value, mesh, mesh_axes=(axis,), shift_axis=axis, offset=offset, rotate=True, at=at)


_GROUPED: Registry[str, Callable[[ir.Operation, Mesh, Axes], _Make | None]] = Registry("collective of groups")
"""By name, how to build such a collective along these axes; None if the dialect has no kind for its body."""


def _grouped(op: ir.Operation, mesh: Mesh) -> _Make | None:
    if (positions := group_positions(op.attributes["replica_groups"], mesh)) is None:
        return None
    in_order = np.sort(positions, axis=1) if op.name == "stablehlo.all_reduce" else positions
    axes = axes_along(in_order, mesh)
    return _GROUPED[op.name](op, mesh, axes) if axes else None


@_GROUPED.register("stablehlo.all_reduce")
def _all_reduce(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make | None:
    """Raises one whose reduction the dialect has."""
    kind = _reduction(op)
    return (lambda value, at: build.all_reduce(value, mesh, mesh_axes=axes, reduction=kind, at=at)) if kind else None


@_GROUPED.register("stablehlo.reduce_scatter")
def _reduce_scatter(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make | None:
    """Raises one whose reduction the dialect has."""
    kind, dim = _reduction(op), _integer(op, "scatter_dimension")
    if not kind:
        return None
    return lambda value, at: build.reduce_scatter(value, mesh, mesh_axes=axes, scatter_axis=dim, reduction=kind, at=at)


@_GROUPED.register("stablehlo.all_gather")
def _all_gather(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make:
    """Keeps the dimension."""
    dim = _integer(op, "all_gather_dim")
    return lambda value, at: build.all_gather(value, mesh, mesh_axes=axes, gather_axis=dim, at=at)


@_GROUPED.register("stablehlo.all_to_all")
def _all_to_all(op: ir.Operation, mesh: Mesh, axes: Axes) -> _Make:
    """Keeps the dimensions."""
    split, concat = _integer(op, "split_dimension"), _integer(op, "concat_dimension")
    return lambda value, at: build.all_to_all(value, mesh, mesh_axes=axes, split_axis=split, concat_axis=concat, at=at)


_PERMUTE = "stablehlo.collective_permute"
_RAISED = (*_GROUPED, _PERMUTE)


def _reduction(op: ir.Operation) -> str:
    """The reduction kind of a collective in the element type of its operands; "" for any other body."""
    kind = body_kind(op)
    reduced = element_of(op.regions[0].blocks[0].arguments[0])
    return kind if all(element_of(operand) == reduced for operand in op.operands) else ""


def _integer(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)
