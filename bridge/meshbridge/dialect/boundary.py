"""What the functions of a partitioned program say of their arguments and results."""

from __future__ import annotations

from meshbridge.dialect.ops import BOUNDARY_GLOBAL
from meshbridge.ir.mlir import all_entries, ir


def is_partitioned(module: ir.Module) -> bool:
    """Whether a function of `module` is the program of one device: then its arguments or results say what they are shards of."""
    functions = [view.operation for view in module.body.operations if view.operation.name == "func.func"]
    return any(BOUNDARY_GLOBAL in entry for function in functions for entry in all_entries(function))
