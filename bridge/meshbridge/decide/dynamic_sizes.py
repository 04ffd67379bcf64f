"""Refuses sizes that are unknown at compile time: the cost of a sharding depends on them."""

from __future__ import annotations

from meshbridge.ir.mlir import OpError, ir, walk
from meshbridge.ir.sharding import DYNAMIC, Mesh


def refuse_dynamic_axes(function: ir.Operation, mesh: Mesh) -> None:
    """Raises OpError if `mesh` has axes of unknown size."""
    if DYNAMIC in mesh.shape:
        sizes = "x".join("?" if size == DYNAMIC else str(size) for size in mesh.shape)
        message = f"is to be partitioned on the mesh @{mesh.name} of shape {sizes}, expected known sizes"
        raise OpError(function, message, hint=f"mesh-opt --mesh-specialize={mesh.name}=… gives them")


def refuse_dynamic_sizes(function: ir.Operation) -> None:
    """Raises OpError if a tensor has dimensions of unknown size."""
    for op in walk(function):
        for value in (*op.operands, *op.results):
            if isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape:
                message = f"has a value of type {value.type}, expected sizes that are known while partitioning"
                raise OpError(op, message, hint="--dims gives symbolic dimensions sizes")
