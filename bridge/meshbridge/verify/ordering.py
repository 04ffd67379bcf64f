"""Ops that compare elements with each other: sort and top_k."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verify.field import Array, Field
from meshbridge.verify.machine import Machine, align, evaluates, integer
from meshbridge.verify.reductions import run_scalars


@evaluates("stablehlo.sort")
def sort(machine: Machine, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Sorted together along a dimension by the comparator; always stable."""
    values = align(*operands)
    dim = integer(op, "dimension", -1)
    axis = dim + 1 if dim >= 0 else values[0].ndim + dim
    rows = [np.moveaxis(value, axis, -1) for value in values]

    def before(left: Array, right: Array) -> Array:
        """Whether the rows at one set of positions come before those at another."""
        pairs = [np.take_along_axis(row, place, -1) for row in rows for place in (left, right)]
        return run_scalars(machine, op, 0, pairs)[0]

    order = merge_order(before, rows[0].shape)
    return [np.moveaxis(np.take_along_axis(row, order, -1), -1, axis) for row in rows]


def merge_order(before: object, shape: tuple[int, ...]) -> Array:
    """The stable order of the last dimension by `before(positions, positions)`: merge sort, all rows at once.

    Every level finds by binary search how many elements of the sibling run come before each element.
    """
    assert callable(before)
    length = shape[-1]
    order = np.broadcast_to(np.arange(length), shape).copy()
    column = np.arange(length)
    run = 1
    while run < length:
        start = column // (2 * run) * (2 * run)
        in_left = column - start < run
        middle, stop = np.minimum(start + run, length), np.minimum(start + 2 * run, length)
        low = np.broadcast_to(np.where(in_left, middle, start), shape).copy()
        high = np.broadcast_to(np.where(in_left, stop, middle), shape).copy()
        first = low.copy()
        while (low < high).any():
            probe = np.minimum((low + high) // 2, length - 1)
            other = np.take_along_axis(order, probe, -1)
            # A left element stays before its equals on the right, a right one behind its equals on the left.
            earlier = np.where(in_left, before(other, order), ~before(order, other))
            going = low < high
            low = np.where(going & earlier, probe + 1, low)
            high = np.where(going & ~earlier, probe, high)
        target = np.where(in_left, column, column - middle + start) + (low - first)
        merged = np.empty_like(order)
        np.put_along_axis(merged, target, order, -1)
        order, run = merged, 2 * run
    return order


@evaluates("chlo.top_k", "mhlo.topk")
def top_k(machine: Machine, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The largest k along the last dimension and where they stand; equal ones in their order."""
    return largest(machine.field, op, op.attributes, operands[0])


def largest(field: Field, op: ir.Operation, said: ir.OpAttributeMap | ir.DictAttr, x: Array) -> list[Array]:
    """The largest k elements along the last dimension and their indices, as the attributes of a top-k say.

    Raises OpError for the smallest ones.
    """
    if "largest" in said and not ir.BoolAttr(said["largest"]).value:
        raise OpError(op, "takes the smallest elements, which has no exact evaluation", "negate the operand")
    count = ir.IntegerAttr(said["k"]).value
    places = field.order(x) if x.dtype.kind == "f" else x
    backwards = np.argsort(places[..., ::-1], axis=-1, kind="stable")  # from the end, so that equal ones keep their order
    order = (places.shape[-1] - 1 - backwards)[..., ::-1][..., :count]
    return [np.take_along_axis(x, order, -1), order.astype(np.int32)]
