"""The sharding notations that this package brings; see meshbridge.read.formats.Notation."""

from __future__ import annotations

from meshbridge.ir.mlir import all_entries, ir, walk_all
from meshbridge.read.formats import Notation, deferred
from meshbridge_converters import sdy_frontend
from meshbridge_converters.carriers import MHLO_SHARDING, SHARDING

MESH = "mesh.mesh"
"""Declared by mesh IR, which may hold sdy operations that the mesh dialect has no word for."""


def uses_sdy(module: ir.Module) -> bool:
    """Whether `module` declares an `sdy.mesh` (or several, in a string), or carries a sharding over a mesh written in place."""
    names = {op.operation.name for op in module.body.operations}
    return MESH not in names and ("sdy.mesh" in names or sdy_frontend.is_used(module) or _carries(module, SHARDING))


def uses_gspmd(module: ir.Module) -> bool:
    """Whether `module` carries `mhlo.sharding` and nothing that says the same in sdy or mesh."""
    names = {op.operation.name for op in module.body.operations}
    return not names & {MESH, "sdy.mesh"} and not sdy_frontend.is_used(module) and _carries(module, MHLO_SHARDING)


def _carries(module: ir.Module, attribute: str) -> bool:
    """Whether an operation, an argument or a result of `module` has `attribute`, or an operation is of its dialect."""
    dialect = attribute.split(".")[0] + "."
    return any(
        op.name.startswith(dialect) or attribute in op.attributes or any(attribute in entry for entry in all_entries(op))
        for op in walk_all(module)
    )


_export_sdy = deferred("meshbridge_converters.sdy_export:export_module")
_export_gspmd = deferred("meshbridge_converters.gspmd:export_module")

SDY = Notation(
    name="sdy",
    summary="the attributes and operations of Shardy's dialect sdy",
    detect=uses_sdy,
    to_mesh=deferred("meshbridge_converters.sdy_import:import_module"),
    from_mesh=lambda module, closed: _export_sdy(module, closed=closed),
    wrap_local=deferred("meshbridge_converters.manual:wrap_manual"),
)

GSPMD = Notation(
    name="gspmd",
    summary="the attribute mhlo.sharding and the custom calls of GSPMD",
    detect=uses_gspmd,
    to_mesh=deferred("meshbridge_converters.gspmd:import_module"),
    from_mesh=lambda module, closed: _export_gspmd(module, closed=closed),
    from_mesh_plain=lambda module, closed: _export_gspmd(module, closed=closed, plain=True),
)
