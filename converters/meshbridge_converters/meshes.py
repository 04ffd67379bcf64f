"""`sdy.mesh` -> `mesh.mesh` (`declare`), and back (`restore`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshbridge.dialect import build
from meshbridge.dialect.ops import AXIS_DIGITS, AXIS_NAMES, DEVICE_IDS, MeshOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import OpError, ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge_converters import sdy_attributes
from meshbridge_converters.sdy_attributes import SdyMesh

INLINED = "meshbridge.inlined"
"""Discardable attribute of `mesh.mesh`: sdy had the mesh inside its shardings, without a symbol."""

NAMED_BY_GROUPS = "meshbridge.named_by_groups"
"""Discardable attribute of `mesh.mesh`: device groups named it by its symbol (`group_meshes`)."""


MESH = "meshbridge.mesh"
"""Discardable attribute of operations that mesh axes are said of: the symbol of their mesh."""


def declare(mesh: SdyMesh, others: Mapping[str, ir.Attribute], loc: ir.Location, ip: ir.InsertionPoint) -> None:
    """Writes `mesh` as a `mesh.mesh` that also carries the attributes `others`, e.g. `stablehlo.mesh`.

    A mesh without axes (all of one device, or none in particular) becomes one axis of size 1 without a name: the mesh dialect
    has no mesh of rank 0.
    """
    op = build.mesh(mesh.value if mesh.value.rank else replace(mesh.value, shape=(1,)), at=Builder(loc, ip))
    if not mesh.value.rank:
        op.attributes[AXIS_NAMES] = ir.ArrayAttr.get([])
    if mesh.inlined:
        op.attributes[INLINED] = ir.UnitAttr.get()
    for name, attr in others.items():
        op.attributes[name] = attr


def restore(module: ir.Module) -> dict[str, SdyMesh]:
    """Replaces each `mesh.mesh` of `module` by the `sdy.mesh` that it was, and returns them by symbol.

    Raises OpError for a mesh of unknown shape.
    """
    declared = [op.operation for op in module.body.operations if op.operation.name == MeshOp.OPERATION_NAME]
    restored: dict[str, SdyMesh] = {}
    for op in declared:
        mesh = _restored(op)
        restored[mesh.value.name] = mesh
        if not mesh.inlined:
            own = ("sym_name", "shape", AXIS_NAMES, AXIS_DIGITS, DEVICE_IDS, NAMED_BY_GROUPS)
            attrs = {name: op.attributes[name] for name in op.attributes if name not in own}
            attrs |= {"sym_name": ir.StringAttr.get(mesh.value.name), "mesh": mesh.attr}
            ir.Operation.create("sdy.mesh", [], [], attrs, loc=op.location, ip=ir.InsertionPoint(op))
    for op in declared:
        op.erase()
    return restored


def _restored(op: ir.Operation) -> SdyMesh:
    value = MeshOp(op).value
    if DYNAMIC in value.shape:
        raise OpError(op, "has a size that is not known, which sdy cannot say")
    if AXIS_NAMES in op.attributes and not len(ir.ArrayAttr(op.attributes[AXIS_NAMES])):
        value = replace(value, shape=())
    return SdyMesh(sdy_attributes.mesh_attr(value), value, INLINED in op.attributes)
