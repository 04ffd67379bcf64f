"""The sharding notations that this package brings; see meshbridge.formats.Notation."""

from __future__ import annotations

from meshbridge.formats import Notation
from meshbridge.mlir import ir, walk
from meshbridge_converters import manual, sdy

_FUNCTION_ATTRIBUTES = ("arg_attrs", "res_attrs")


def uses_sdy(module: ir.Module) -> bool:
    """Whether `module` declares an `sdy.mesh` or carries a sharding over a mesh written in place.

    Mesh IR may hold sdy operations that the mesh dialect has no word for; its `mesh.mesh` tells it apart.
    """
    names = {op.operation.name for op in module.body.operations}
    if "mesh.mesh" in names:
        return False
    return "sdy.mesh" in names or any(map(_carries_sdy, walk(module.operation)))


def _carries_sdy(op: ir.Operation) -> bool:
    if op.name.startswith("sdy.") or "sdy.sharding" in op.attributes:
        return True
    return op.name == "func.func" and any(
        "sdy.sharding" in ir.DictAttr(entry)
        for side in _FUNCTION_ATTRIBUTES
        if side in op.attributes
        for entry in ir.ArrayAttr(op.attributes[side])
    )


SDY = Notation(
    name="sdy",
    summary="the attributes and operations of Shardy's dialect sdy",
    detect=uses_sdy,
    to_mesh=sdy.import_module,
    from_mesh=sdy.export_module,
    wrap_local=manual.wrap_manual,
)
