"""The one walk of the lowering: every block in order, each operation replaced on the spot."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import mesh_ops, refuse_too_many
from meshbridge.dialect.ops import OPTION, RESULT_SPLIT, CollectiveOpView, MeshOpView, ShardShapeOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.groups import Groups, device_line, is_nameable
from meshbridge.ir.mlir import OpError, function_type, has_no_regions, ir, mentions
from meshbridge.ir.positions import Positions
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.lowering import exchanges, neighbours, reductions, rooted  # noqa: F401  they fill LOWERINGS
from meshbridge.lowering.indices import definition_of_sharding, sharding_of
from meshbridge.lowering.messages import lower_pair, pairs
from meshbridge.lowering.narrow import widen
from meshbridge.lowering.replicas import BY_PARTITION, by_replica
from meshbridge.lowering.scalars import FORMS, check_users, is_scalar, lower_scalar, retype_arguments, retype_signature
from meshbridge.lowering.site import LOWERINGS, Site

_DECLARATIONS = frozenset({"mesh.mesh", "mesh.sharding", "mesh.shard", "mesh.get_sharding"})
"""Mesh operations that say something and do nothing."""


def lower_module(module: ir.Module, groups: Groups) -> None:
    """Replaces all mesh operations of `module` that run on devices. Raises OpError where one cannot.

    Groups are dense where `ir.groups` names those of several meshes by different axes: XLA (as of jaxlib 0.10) knows one mesh.
    """
    meshes = {op.sym_name: op.value for op in mesh_ops(module.body)}
    for op in mesh_ops(module.body):
        refuse_too_many(op.operation, op.value)
    several = [mesh for mesh in meshes.values() if mesh.size > 1]
    if len(set(map(device_line, several))) > 1 or not all(map(is_nameable, several)):
        groups = replace(groups, spelling="dense")
    with module.context:
        _Walk(meshes, groups, mentions(module, OPTION, RESULT_SPLIT)).block(module.body)


class _Walk:
    """Blocks inside of a block come after what stands before them, so operands are always lowered first."""

    def __init__(self, meshes: dict[str, Mesh], groups: Groups, told: bool) -> None:
        self.meshes = meshes
        self.groups = groups
        self.told = told
        "Whether ops may say how they were partitioned."
        self.constants: dict[ir.Value, int] = {}
        self._unchanged: set[type[ir.OpView]] = set()
        "Classes of ops that stay as they are."

    def _is_unchanged(self, view: ir.OpView) -> bool:
        kind = type(view)
        if kind in self._unchanged:
            return True
        if self.told or isinstance(view, MeshOpView) or not has_no_regions(view):
            return False
        name = view.operation.name
        if name in FORMS or name in BY_PARTITION:
            return False
        self._unchanged.add(kind)
        return True

    def block(self, block: ir.Block) -> None:
        views = [view for view in block.operations if not self._is_unchanged(view)]
        names = [view.operation.name for view in views]
        positions = Positions(self.groups.form)
        for view in views:
            if isinstance(view, CollectiveOpView):
                widen(view.operation)
        messages = pairs(views) if "mesh.send" in names or "mesh.recv" in names else {}
        for number, (view, name) in enumerate(zip(views, names, strict=True)):
            if not isinstance(view, MeshOpView):
                self.other(view, name)
            elif name in ("mesh.send", "mesh.recv"):
                if number in messages:  # else its other half waits for it, or has taken it along
                    lower_pair(messages[number], self.site(view, positions))
            elif name not in _DECLARATIONS:
                self.replace(view, positions)

    def other(self, view: ir.OpView, name: str) -> None:
        op = view.operation
        if name.startswith("mesh."):
            raise OpError(op, "is not an operation of the dialect")
        if name == "func.func":
            self.function(op)
        elif not (name in FORMS and lower_scalar(op, self.constants)):
            attrs = op.attributes
            for told in (OPTION, RESULT_SPLIT):  # in attributes of the mesh dialect, which XLA cannot parse
                if told in attrs:
                    del attrs[told]
            if not has_no_regions(view):
                self.regions(op)
            if name in BY_PARTITION:
                self.collective(op)

    def collective(self, op: ir.Operation) -> None:
        """One of StableHLO's already, in the exported form."""
        if self.meshes and "replica_groups" in op.attributes:
            mesh = max(self.meshes.values(), key=lambda mesh: mesh.size)
            op.attributes["replica_groups"] = self.groups.respelled(mesh, op.attributes["replica_groups"])
        if self.groups.form == "local":
            by_replica(op)

    def regions(self, op: ir.Operation) -> None:
        for region in op.regions:
            for inner in region.blocks:
                self.block(inner)

    def function(self, op: ir.Operation) -> None:
        type_ = function_type(op)
        with_scalars = any(map(is_scalar, (*type_.inputs, *type_.results)))
        if with_scalars:
            retype_arguments(op)
        self.regions(op)
        if with_scalars:
            retype_signature(op)

    def replace(self, view: MeshOpView, positions: Positions) -> None:
        op = view.operation
        if (lowering := LOWERINGS.get(op.name)) is None:
            raise OpError(op, "has no lowering to StableHLO")
        check_users(op.results)
        values = lowering(view, self.site(view, positions))
        for result, value in zip(op.results, values, strict=True):
            result.replace_all_uses_with(value)
        asked = definition_of_sharding(view).operation if isinstance(view, ShardShapeOp) else None
        op.erase()
        if asked and not any(True for _ in asked.results[0].uses):
            asked.erase()

    def site(self, view: MeshOpView, positions: Positions) -> Site:
        op = view.operation
        name = sharding_of(view).mesh if isinstance(view, ShardShapeOp) else view.mesh
        mesh = self.meshes.get(name)
        if mesh is None:
            raise OpError(op, f"names the mesh @{name}, which the module does not declare")
        _check_static(op, mesh)
        emit = Builder.before(op)
        return Site(op, mesh, _group_axes(view, mesh), emit, self.groups, positions, self.constants)


def _check_static(op: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError where the mesh or a tensor of `op` has a size that is only known at run time."""
    if any(size < 1 for size in mesh.shape):
        raise OpError(op, f"runs on @{mesh.name}, whose shape is not known; XLA needs one")
    for type_ in (value.type for value in (*op.operands, *op.results)):
        if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape:
            raise OpError(op, f"moves a {type_}, whose shape is not known; XLA needs one")


def _group_axes(view: MeshOpView, mesh: Mesh) -> Axes:
    """The axes that the operation names. No `axes` means all; no `mesh_axes`, groups of one device, as upstream folds them."""
    attrs = view.operation.attributes
    if "mesh_axes" in attrs:
        return attributes.integers(attrs["mesh_axes"])
    return (attributes.integers(attrs["axes"]) if "axes" in attrs else ()) or tuple(range(mesh.rank))
