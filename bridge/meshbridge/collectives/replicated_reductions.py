"""Reductions over devices that hold the same value: a multiplication replaces them, and nothing is sent."""

from __future__ import annotations

from meshbridge.analysis.known_values import integer_bounds
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect import build
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.reductions import IDEMPOTENT


def drop_replicated_axes(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Removes axes along which devices hold the same value from the all-reduce or reduce-scatter `op`; returns whether it did.

    `jax.grad` of a `psum` under `check_vma=False` sums equal shares over devices.
    """
    view = AllReduceOp(op) if op.name == AllReduceOp.OPERATION_NAME else ReduceScatterOp(op)
    kind, mesh, value, element = view.reduction, rewriter.meshes[view.mesh], view.input, element_of(view.input)
    if kind not in (*IDEMPOTENT, "sum", "average") or (kind == "average" and is_integer(element)):
        return False
    same_axes = tuple(axis for axis in view.mesh_axes if rewriter.is_replicated(value, view.mesh, (axis,), deep=True))
    different_axes = [axis for axis in view.mesh_axes if axis not in same_axes]
    count = mesh.group_size(same_axes) if kind == "sum" else 1
    if not same_axes or not _is_factor(count, element) or (different_axes and isinstance(view, ReduceScatterOp)):
        return False
    builder = Builder.before(op)
    if isinstance(view, ReduceScatterOp):
        value = build.all_slice(value, mesh, mesh_axes=view.mesh_axes, slice_axis=view.scatter_axis, at=builder)
    elif different_axes:
        value = build.all_reduce(value, mesh, mesh_axes=different_axes, reduction=kind, at=builder)
    is_bit = isinstance(element, ir.IntegerType) and element.width == 1  # a sum of equal bits is the bit
    rewriter.replace(op, value if count == 1 or is_bit else builder.elementwise("multiply", value, count))
    return True


def _is_factor(count: int, element: ir.Type) -> bool:
    """True if adding a number `count` times equals multiplying it in that element type: a product loses complex infinities."""
    if isinstance(element, ir.IntegerType):
        bounds = integer_bounds(element)
        return bounds is None or count <= bounds[1]
    significant = count // (count & -count)
    return count == 1 or (isinstance(element, ir.FloatType) and element.width >= 16 and significant < 2**8 and count < 2**15)
