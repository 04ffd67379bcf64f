"""Ops that order elements: sort and top_k."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.field import Array, Field
from meshbridge.verification.machine import Evaluator, align, evaluates, integer
from meshbridge.verification.reductions import run_scalars


@evaluates("stablehlo.sort")
def sort(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Sorts the operands together along a dimension by the comparator; always stable."""
    values = align(*operands)
    dim = integer(op, "dimension", -1)
    axis = dim + 1 if dim >= 0 else values[0].ndim + dim
    rows = [np.moveaxis(value, axis, -1) for value in values]

    def before(left: Array, right: Array) -> Array:
        """Whether the rows at one set of positions come before those at another."""
        pairs = [np.take_along_axis(row, place, -1) for row in rows for place in (left, right)]
        return run_scalars(machine, op, 0, pairs)[0]

    order = network_order(before, rows[0].shape)
    return [np.moveaxis(np.take_along_axis(row, order, -1), -1, axis) for row in rows]


def network_order(before: Callable[[Array, Array], Array], shape: tuple[int, ...]) -> Array:
    """The stable order of the last dimension by `before(positions, positions)`, for all rows at once.

    Batcher's odd-even mergesort is a network of exchanges: even a comparator that is no order, because it ignores NaN, orders
    each row, and alike on every device. (K. E. Batcher, "Sorting networks and their applications", AFIPS 1968.)
    """
    length = shape[-1]
    order = np.broadcast_to(np.arange(length), shape).copy()
    for low, high in _exchanges(length):
        at_low, at_high = order[..., low], order[..., high]
        swap = before(at_high, at_low) | (~before(at_low, at_high) & (at_high < at_low))
        order[..., low], order[..., high] = np.where(swap, at_high, at_low), np.where(swap, at_low, at_high)
    return order


def _exchanges(length: int) -> Iterator[tuple[Array, Array]]:
    """The pairs of positions that the network exchanges at the same time."""
    column, merged = np.arange(length), 1
    while merged < length:
        distance = merged
        while distance:
            start = distance % merged
            low = column[(column >= start) & ((column - start) // distance % 2 == 0)]
            low = low[low + distance < length]
            low = low[low // (2 * merged) == (low + distance) // (2 * merged)]
            yield low, low + distance
            distance //= 2
        merged *= 2


@evaluates("chlo.top_k", "mhlo.topk")
def top_k(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The largest k elements along the last dimension and their positions; equal elements keep their order."""
    return largest(machine.field, op, op.attributes, operands[0])


def largest(field: Field, op: ir.Operation, attributes: ir.OpAttributeMap | ir.DictAttr, x: Array) -> list[Array]:
    """The largest k elements along the last dimension and their indices, by the attributes of a top-k.

    Raises OpError for the smallest elements.
    """
    if "largest" in attributes and not ir.BoolAttr(attributes["largest"]).value:
        raise OpError(op, "takes the smallest elements, which has no exact evaluation", "negate the operand")
    count = ir.IntegerAttr(attributes["k"]).value
    places = field.order(x) if x.dtype.kind == "f" else x
    backwards = np.argsort(places[..., ::-1], axis=-1, kind="stable")  # reversed, so that equal elements keep their order
    order = (places.shape[-1] - 1 - backwards)[..., ::-1][..., :count]
    return [np.take_along_axis(x, order, -1), order.astype(np.int32)]
