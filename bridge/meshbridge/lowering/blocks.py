"""The one walk of the lowering: every block in order, each mesh operation replaced on the spot."""

from __future__ import annotations

from meshbridge.dialect.ops import MeshOp, MeshOpView
from meshbridge.lowering import exchanges, indices, reductions  # noqa: F401  fill LOWERINGS
from meshbridge.lowering.emit import Emitter
from meshbridge.lowering.groups import Groups
from meshbridge.lowering.position import Positions
from meshbridge.lowering.site import LOWERINGS, Site
from meshbridge.mlir import OpError, ir
from meshbridge.sharding import Axes, Mesh

_DECLARATIONS = frozenset({"mesh.mesh", "mesh.sharding", "mesh.shard", "mesh.get_sharding"})
"""Mesh operations that say something and do nothing."""


def lower_module(module: ir.Module, groups: Groups) -> None:
    """Replaces all mesh operations of `module` that run on devices. Raises OpError where one cannot."""
    meshes = {op.sym_name: op.value for op in module.body.operations if isinstance(op, MeshOp)}
    with module.context:
        _Walk(meshes, groups).block(module.body)


class _Walk:
    def __init__(self, meshes: dict[str, Mesh], groups: Groups) -> None:
        self.meshes = meshes
        self.groups = groups

    def block(self, block: ir.Block) -> None:
        positions = Positions(self.groups.form)
        for view in list(block.operations):
            op = view.operation
            if op.name.startswith("mesh."):
                if op.name not in _DECLARATIONS:
                    self.replace(view, positions)
            else:
                for region in op.regions:
                    for inner in region.blocks:
                        self.block(inner)

    def replace(self, view: MeshOpView, positions: Positions) -> None:
        op = view.operation
        if (lowering := LOWERINGS.get(op.name)) is None:
            raise OpError(op, "has no lowering to StableHLO")
        mesh = self.meshes.get(view.mesh)
        if mesh is None:
            raise OpError(op, f"names the mesh @{view.mesh}, which the module does not declare")
        if min(mesh.shape) < 1:
            raise OpError(op, f"runs on @{mesh.name}, whose shape is not known; XLA needs one")
        emit = Emitter(op.location, ir.InsertionPoint(op))
        site = Site(op, mesh, _group_axes(view, mesh), emit, self.groups, positions)
        for result, value in zip(op.results, lowering(view, site), strict=True):
            result.replace_all_uses_with(value)
        op.erase()


def _group_axes(view: MeshOpView, mesh: Mesh) -> Axes:
    """The axes that the operation names; none means all (seed 002)."""
    attrs = view.operation.attributes
    for name in ("mesh_axes", "axes"):
        if name in attrs:
            return tuple(attrs[name]) or tuple(range(mesh.rank))
    return tuple(range(mesh.rank))
