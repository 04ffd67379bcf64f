"""Computes a device's coordinates from its linear number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.ops import MeshOpView, ProcessMultiIndexOp
from meshbridge.ir.index_arithmetic import Arithmetic
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import Mesh
from meshbridge.upstream.index_lowering import IndexLowering


@register
@dataclass(frozen=True)
class ProcessMultiIndexLowering(IndexLowering):
    """Computes `mesh.process_multi_index` from `mesh.process_linear_index`; upstream's pass of this name, without `affine`.

    Input:   mesh.mesh @m(shape = 2x4)
             %0 = mesh.process_multi_index on @m axes = [1] : index
    Output:  %1 = mesh.process_linear_index on @m : index
             %2:2 = mesh.mesh_shape @m : index, index
             %0 = arith.remsi %1, %2#1 : index
    """

    name: ClassVar[str] = "test-mesh-process-multi-index-op-lowering"
    aliases: ClassVar[tuple[str, ...]] = ("test-grid-process-multi-index-op-lowering",)

    lowers: ClassVar[type[MeshOpView]] = ProcessMultiIndexOp

    def lower(self, view: MeshOpView, mesh: Mesh, arithmetic: Arithmetic) -> None:
        """The digits of the device's number along the op's axes."""
        assert isinstance(view, ProcessMultiIndexOp)
        axes = view.axes or tuple(range(mesh.rank))
        digits = arithmetic.delinearize(build.process_linear_index(mesh), build.mesh_shape(mesh), min(axes))
        for result, axis in zip(view.operation.results, axes, strict=True):
            result.replace_all_uses_with(arithmetic.value(digits[axis]))
