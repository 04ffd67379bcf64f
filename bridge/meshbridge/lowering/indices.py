"""Operations that say where a device stands: mesh_shape, process_multi_index, process_linear_index.

Their `index` results become `tensor<i32>`; `scalars` carries those through the arithmetic that uses them.
"""

from __future__ import annotations

from meshbridge.dialect.ops import MeshShapeOp, ProcessLinearIndexOp, ProcessMultiIndexOp
from meshbridge.lowering.site import Site, lowers
from meshbridge.mlir import ir


@lowers(MeshShapeOp)
def mesh_shape(op: MeshShapeOp, site: Site) -> list[ir.Value]:
    """Constants."""
    return [site.emit.scalar(site.mesh.shape[axis]) for axis in site.axes]


@lowers(ProcessMultiIndexOp)
def process_multi_index(op: ProcessMultiIndexOp, site: Site) -> list[ir.Value]:
    """One division and one remainder per axis."""
    return [site.positions.in_group(site.mesh, (axis,), site.emit) for axis in site.axes]


@lowers(ProcessLinearIndexOp)
def process_linear_index(op: ProcessLinearIndexOp, site: Site) -> list[ir.Value]:
    """The logical number itself, unless the mesh has a device order of its own."""
    return [site.positions.linear(site.mesh, site.emit)]
