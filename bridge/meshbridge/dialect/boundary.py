"""What the functions of a partitioned program say of their arguments and results."""

from __future__ import annotations

from meshbridge.dialect.ops import BOUNDARY_GLOBAL
from meshbridge.ir.mlir import ir


def is_partitioned(module: ir.Module) -> bool:
    """Whether a function of `module` is the program of one device: then its arguments or results say what they are shards of."""
    functions = [view.operation.attributes for view in module.body.operations if view.operation.name == "func.func"]
    sides = [ir.ArrayAttr(attrs[side]) for attrs in functions for side in ("arg_attrs", "res_attrs") if side in attrs]
    return any(BOUNDARY_GLOBAL in ir.DictAttr(entry) for side in sides for entry in side)
