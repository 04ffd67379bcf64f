"""`raise-collectives`: collectives that the program has of its own become the mesh dialect's, so that the passes see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.device_lists import axes_along, group_positions
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
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>

    Users write them in manual computations (`jax.shard_map`), which are inlined when a program is partitioned. What follows makes
    one collective of those that stood on both sides of the border: a reduce-scatter of a `psum` whose result is resharded, or one
    all-reduce of two over different axes. `all_reduce`, `all_gather`, `reduce_scatter` and `all_to_all` are raised; groups that
    divide an axis and reductions by other bodies than one op stay as they are.
    """

    name: ClassVar[str] = "raise-collectives"

    def run(self, module: ir.Module) -> bool:
        """Raises OpError where the program is on several meshes."""
        found = [op for op in find(module.operation, _RAISED) if _numbers_partitions(op)]
        mesh = find_mesh(module) if found else None
        with module.context, ir.Location.unknown():
            return mesh is not None and any([_raise(op, mesh) for op in found])


def _numbers_partitions(op: ir.Operation) -> bool:
    """Whether the groups of a collective list devices by partition, as those of a mesh do."""
    channel = op.attributes.get("channel_handle")
    return (
        channel is not None
        and stablehlo.ChannelHandle(channel).handle > 0
        and ("use_global_device_ids" in op.attributes or op.name == "stablehlo.all_to_all")
    )


def _raise(op: ir.Operation, mesh: Mesh) -> bool:
    """Replaces a collective by one of the dialect for each of its operands; returns whether there is such."""
    values = [*op.operands, *op.results]
    if any(not isinstance(value.type, ir.RankedTensorType) or DYNAMIC in shape_of(value) for value in values):
        return False
    if any(element_of(operand) != element_of(result) for operand, result in zip(op.operands, op.results, strict=True)):
        return False
    if (positions := group_positions(op.attributes["replica_groups"], mesh)) is None:
        return False
    in_order = np.sort(positions, axis=1) if op.name == "stablehlo.all_reduce" else positions
    if not (axes := axes_along(in_order, mesh)):
        return False
    make = _RAISED[op.name](op, mesh, axes)
    if make is None:
        return False
    emit = Builder.before(op)
    for operand, result in zip(op.operands, op.results, strict=True):
        result.replace_all_uses_with(make(operand, emit))
    op.erase()
    return True


_Make = Callable[[ir.Value, Builder], ir.Value]
"""Writes the collective of the dialect for one operand."""


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


_RAISED: dict[str, Callable[[ir.Operation, Mesh, Axes], _Make | None]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.reduce_scatter": _reduce_scatter,
}
"""By name, how to write such a collective along these axes; None where its body has no kind of the dialect's."""


def _reduction(op: ir.Operation) -> str:
    """The kind by which a collective reduces, in the element type of its operands; "" for any other body."""
    kind = body_kind(op)
    reduced = element_of(op.regions[0].blocks[0].arguments[0])
    return kind if all(element_of(operand) == reduced for operand in op.operands) else ""


def _integer(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)
