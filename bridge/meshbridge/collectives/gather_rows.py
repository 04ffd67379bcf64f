"""`gather-rows`: what a program returns is gathered along the outermost dimension in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.cost.collective_ops import RETURNS, alike_time, arranged_bytes, is_returned, time_of
from meshbridge.cost.objective import device
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.tiles import memory_order
from meshbridge.machines.layout import place
from meshbridge.machines.machine import OptionSet
from meshbridge.machines.target import has_topology, of_machine


@register
@dataclass(frozen=True)
class GatherRows(Pass):
    """Exchanges columns for rows before what the program returns is gathered.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 1 : tensor<64x2xf32> -> tensor<64x8xf32>
             return %0
    Output:  %0 = mesh.all_to_all %x on @m mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<64x2xf32> -> tensor<16x8xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<16x8xf32> -> tensor<64x8xf32>
             return %1

    XLA:TPU gathers along the outermost dimension in memory, and copies all of it into the order in which results are returned
    (`ir/tiles.py`). Products read it in either order. What is exchanged are as many bytes as one device has of the result, and
    copied before or after that: it is done where both take less than the copy of all, by the machine's file.
    """

    name: ClassVar[str] = "gather-rows"
    machine: str = ""
    "The device on which that is to take less time, perhaps with a topology; without one all is exchanged that can be."
    layout: str = ""
    "Where the axes of the mesh are on it, as in data=dcn,model=ici."
    compiler_options: OptionSet = "default"
    "Under which of XLA's options the step will be compiled there."

    def run(self, module: ir.Module) -> bool:
        meshes, changed = declared_meshes(module.body), False
        with module.context:
            for gather in _returned(module):
                mesh = meshes[AllGatherOp(gather).mesh]
                if (dim := _outermost(gather, mesh)) is None:
                    continue
                exchange = _exchange(gather, mesh, dim)
                if self._pays(gather, exchange, mesh):
                    _gather(gather, exchange, mesh, dim)
                    changed = True
                else:
                    exchange.erase()
        return changed

    def _pays(self, gather: ir.Operation, exchange: ir.Operation, mesh: Mesh) -> bool:
        """Whether the exchange and its copies take less than the gather's copy. Raises MeshError for an unknown machine."""
        if not self.machine:
            return True
        machine, axes = device(self.machine, self.compiler_options), AllGatherOp(gather).mesh_axes
        count = mesh.group_size(axes)
        if has_topology(self.machine):
            placement = place(mesh, of_machine(self.machine, self.layout, self.compiler_options))
            seconds = time_of(exchange, mesh, axes, placement, count).seconds
        else:
            seconds = alike_time((1 - 1 / count) * tensor_bytes(exchange.operands[0]), machine.link).seconds
        return seconds + arranged_bytes(exchange) / machine.arranged < arranged_bytes(gather) / machine.arranged


def _returned(module: ir.Module) -> Iterator[ir.Operation]:
    """The all-gathers whose results the program returns and does nothing else with."""
    for value in dict.fromkeys(value for op in find(module.operation, RETURNS) for value in op.operands):
        if not isinstance(value.owner, ir.Block) and op_of(value).name == AllGatherOp.OPERATION_NAME and is_returned(value):
            yield op_of(value)


def _outermost(gather: ir.Operation, mesh: Mesh) -> int | None:
    """The dimension of the result that is outermost in memory, of those that have more than one element; None where what is
    gathered is gathered along it, or has no equal pieces along it for all devices."""
    view = AllGatherOp(gather)
    shape, count = shape_of(gather.results[0]), mesh.group_size(view.mesh_axes)
    if DYNAMIC in (*shape, *mesh.shape) or count == 1:
        return None
    first = next((dim for dim in memory_order(shape) if shape[dim] > 1), view.gather_axis)
    return first if first != view.gather_axis and shape[first] % count == 0 else None


def _exchange(gather: ir.Operation, mesh: Mesh, dim: int) -> ir.Operation:
    """Of each device's part of the result its piece along `dim`."""
    view = AllGatherOp(gather)
    axes, emit = view.mesh_axes, Builder.before(gather)
    return op_of(build.all_to_all(view.input, mesh, mesh_axes=axes, split_axis=dim, concat_axis=view.gather_axis, at=emit))


def _gather(gather: ir.Operation, exchange: ir.Operation, mesh: Mesh, dim: int) -> None:
    """Gathers what is exchanged along `dim` in place of `gather`."""
    axes = AllGatherOp(gather).mesh_axes
    whole = build.all_gather(exchange.results[0], mesh, mesh_axes=axes, gather_axis=dim, at=Builder.before(gather))
    gather.results[0].replace_all_uses_with(whole)
    gather.erase()
