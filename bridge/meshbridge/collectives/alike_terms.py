"""Sums over devices of what they hold alike: it is multiplied, and nothing is sent."""

from __future__ import annotations

from meshbridge.analysis.known_values import integer_bounds
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect import build
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.reductions import IDEMPOTENT


def reduce_what_differs(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Has the all-reduce or reduce-scatter `op` reduce over no axis along which devices hold the same; returns whether it did.

    `jax.grad` of a `psum` under `check_vma=False` adds up over devices what each has an equal share of.
    """
    view = AllReduceOp(op) if op.name == AllReduceOp.OPERATION_NAME else ReduceScatterOp(op)
    kind, mesh, value, element = view.reduction, rewriter.meshes[view.mesh], view.input, element_of(view.input)
    if kind not in (*IDEMPOTENT, "sum", "average") or (kind == "average" and is_integer(element)):
        return False
    same = tuple(axis for axis in view.mesh_axes if rewriter.is_replicated(value, view.mesh, (axis,), deep=True))
    different = [axis for axis in view.mesh_axes if axis not in same]
    count = mesh.group_size(same) if kind == "sum" else 1
    if not same or not _is_factor(count, element) or (different and isinstance(view, ReduceScatterOp)):
        return False
    emit = Builder.before(op)
    if isinstance(view, ReduceScatterOp):
        value = build.all_slice(value, mesh, mesh_axes=view.mesh_axes, slice_axis=view.scatter_axis, at=emit)
    elif different:
        value = build.all_reduce(value, mesh, mesh_axes=different, reduction=kind, at=emit)
    is_bit = isinstance(element, ir.IntegerType) and element.width == 1  # a sum of bits is whether there is one
    rewriter.replace(op, value if count == 1 or is_bit else emit.elementwise("multiply", value, count))
    return True


def _is_factor(count: int, element: ir.Type) -> bool:
    """Whether so many times a number is a product with an element of that type: complex infinities are lost in one."""
    if isinstance(element, ir.IntegerType):
        bounds = integer_bounds(element)
        return bounds is None or count <= bounds[1]
    significant = count // (count & -count)
    return count == 1 or (isinstance(element, ir.FloatType) and element.width >= 16 and significant < 2**8 and count < 2**15)
