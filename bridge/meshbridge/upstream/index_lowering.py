"""The common part of upstream's lowerings of ops that return indices."""

from __future__ import annotations

from typing import ClassVar

from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import MeshOpView
from meshbridge.ir.index_arithmetic import Arithmetic
from meshbridge.ir.mlir import OpError, ir, walk_all
from meshbridge.ir.passes import Pass
from meshbridge.ir.sharding import Mesh


class IndexLowering(Pass):
    """A pass that computes the results of one op of the dialect."""

    lowers: ClassVar[type[MeshOpView]]

    def lower(self, view: MeshOpView, mesh: Mesh, arithmetic: Arithmetic) -> None:
        """Replaces the op's results by other values; then the op is erased."""
        raise NotImplementedError(type(self))

    def run(self, module: ir.Module) -> None:
        """Raises OpError if the mesh is not declared."""
        meshes = declared_meshes(module.body)
        arithmetic = Arithmetic()
        with module.context:
            for op in walk_all(module):
                if isinstance(view := op.opview, self.lowers):
                    if view.mesh not in meshes:
                        raise OpError(op, f"names the mesh @{view.mesh}, which the module does not declare")
                    with ir.InsertionPoint(op), op.location:
                        self.lower(view, meshes[view.mesh], arithmetic)
                    op.erase()
