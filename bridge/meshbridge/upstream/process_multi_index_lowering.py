"""Coordinates of a device from its linear number, in arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.ops import MeshOp, ProcessMultiIndexOp
from meshbridge.ir.mlir import OpError, ir, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh
from meshbridge.upstream.index_arithmetic import Arithmetic


@register
@dataclass(frozen=True)
class ProcessMultiIndexLowering(Pass):
    """Computes `mesh.process_multi_index` from `mesh.process_linear_index`; upstream's pass of this name, without `affine`.

    Input:   mesh.mesh @m(shape = 2x4)
             %0 = mesh.process_multi_index on @m axes = [1] : index
    Output:  %1 = mesh.process_linear_index on @m : index
             %2:2 = mesh.mesh_shape @m : index, index
             %0 = arith.remsi %1, %2#1 : index
    """

    name: ClassVar[str] = "test-mesh-process-multi-index-op-lowering"
    also: ClassVar[tuple[str, ...]] = ("test-grid-process-multi-index-op-lowering",)

    def run(self, module: ir.Module) -> None:
        """Raises OpError where the mesh is not declared."""
        meshes = {op.sym_name: op.value for op in module.body.operations if isinstance(op, MeshOp)}
        arithmetic = Arithmetic()
        with module.context:
            for op in walk_all(module):
                if isinstance(view := op.opview, ProcessMultiIndexOp):
                    _lower(view, meshes, arithmetic)


def _lower(view: ProcessMultiIndexOp, meshes: dict[str, Mesh], arithmetic: Arithmetic) -> None:
    op = view.operation
    mesh = meshes.get(view.mesh)
    if mesh is None:
        raise OpError(op, f"names the mesh @{view.mesh}, which the module does not declare")
    axes = view.axes or tuple(range(mesh.rank))
    with ir.InsertionPoint(op), op.location:
        number = build.process_linear_index(mesh)
        digits = arithmetic.delinearize(number, build.mesh_shape(mesh), min(axes))
        for result, axis in zip(op.results, axes, strict=True):
            result.replace_all_uses_with(arithmetic.value(digits[axis]))
    op.erase()
