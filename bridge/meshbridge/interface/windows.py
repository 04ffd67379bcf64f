"""Windows: pooling and its gradient, and cumulative reductions.

A dimension without a window passes through. A cumulative one (cumsum, cummax, …) is split too: each device scans its shard, and
what all shards before it amount to is joined on, at the price of exchanging one slice per device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.interface.local import (
    Localizer,
    broadcast_scalar,
    compare,
    default_form,
    local_form,
    mask_padding,
    neutral,
    splat,
)
from meshbridge.interface.loops import LoopNest, loops_of, shape_of
from meshbridge.interface.option import Option, result_sharding
from meshbridge.interface.reductions import KINDS, body_kind, is_splat
from meshbridge.interface.shapes import passing
from meshbridge.mlir import ir, stablehlo
from meshbridge.sharding import Axes


@loops_of("stablehlo.reduce_window")
def reduce_window(op: ir.Operation) -> LoopNest:
    """Dimensions with a window of one element and no padding pass through, and so does one that is scanned from end to end."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    untouched = _untouched(op, len(source))
    scanned, _ = _scanned(op)
    return passing(op, lambda dim: source[dim] == result[dim] and (untouched[dim] or dim == scanned))


@loops_of("stablehlo.select_and_scatter")
def select_and_scatter(op: ir.Operation) -> LoopNest:
    """As reduce_window, of which it is the gradient: operand, source and result share the dimensions without a window."""
    operand, source = shape_of(op.operands[0]), shape_of(op.operands[1])
    untouched = _untouched(op, len(operand))
    return passing(op, lambda dim: untouched[dim] and operand[dim] == source[dim])


def _untouched(op: ir.Operation, rank: int) -> list[bool]:
    """The dimensions whose windows are single elements, one after the other, without padding."""
    attrs = op.attributes
    window = integers(attrs["window_dimensions"]) if "window_dimensions" in attrs else (1,) * rank
    strides = integers(attrs["window_strides"]) if "window_strides" in attrs else (1,) * rank
    padding = _padding(op, rank)
    return [window[dim] == 1 and strides[dim] == 1 and padding[dim] == (0, 0) for dim in range(rank)]


def _padding(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    flat = [int(entry) for entry in np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).flat]
    return [(flat[2 * dim], flat[2 * dim + 1]) for dim in range(rank)]


def _scanned(op: ir.Operation) -> tuple[int, bool]:
    """The dimension along which a `reduce_window` is a cumulative reduction, and whether from its end; (-1, False) if none is."""
    shape = shape_of(op.operands[0])
    attrs = op.attributes
    if len(op.results) != 1 or not body_kind(op) or any(name in attrs for name in ("base_dilations", "window_dilations")):
        return -1, False
    window, padding, untouched = integers(attrs["window_dimensions"]), _padding(op, len(shape)), _untouched(op, len(shape))
    strides = integers(attrs["window_strides"]) if "window_strides" in attrs else (1,) * len(shape)
    for dim, size in enumerate(shape):
        others = all(untouched[other] for other in range(len(shape)) if other != dim)
        if (
            size > 1
            and window[dim] == size
            and strides[dim] == 1
            and others
            and (0 in padding[dim])
            and sum(padding[dim]) == size - 1
        ):
            return dim, padding[dim][0] == 0
    return -1, False


@local_form("stablehlo.reduce_window")
def local_reduce_window(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Windows only cover whole dimensions; a split scanned dimension is scanned in shards."""
    wanted = result_sharding(nest, option, 0, at.mesh)
    # The operand has its local shape by now; the window still covers the whole dimension.
    window = integers(op.attributes["window_dimensions"])
    dim = next((dim for dim, axes in enumerate(wanted.split_axes) if axes and window[dim] > 1), -1)
    if dim < 0:
        default_form(op, nest, option, at)
        return
    result, axes, kind = op.results[0], wanted.split_axes[dim], body_kind(op)
    size, length = window[dim], shape_of(op.operands[0])[dim]
    from_end = _padding(op, len(window))[dim][0] == 0
    with ir.InsertionPoint(op), op.location:
        element = ir.RankedTensorType(op.operands[1].type).element_type
        initial, ignored = op.operands[1], neutral(kind, element)
        op.operands[1] = splat(ignored, initial.type)
        if from_end and size % at.mesh.group_size(axes):
            masked = mask_padding(op.operands[0], dim, size, axes, kind, at)
            op.operands[0] = at.adopt(masked, at.global_shape(op.operands[0]), at.shardings[op.operands[0]])
    _shrink_window(op, dim, length, from_end)
    default_form(op, nest, option, at)
    users = [(use.owner.operation, use.operand_number) for use in result.uses]
    with ir.InsertionPoint.after(op), op.location:
        before = _joined_before(result, dim, axes, kind, from_end, at)
        joined = _combine(kind, result, before)
        if not is_splat(initial, ignored):
            joined = _combine(kind, joined, broadcast_scalar(initial, shape_of(result)))
    for user, index in users:
        user.operands[index] = joined
    at.adopt(joined, at.global_shape(result), wanted)


def _shrink_window(op: ir.Operation, dim: int, length: int, from_end: bool) -> None:
    window = list(integers(op.attributes["window_dimensions"]))
    padding = [list(pair) for pair in _padding(op, len(window))]
    window[dim], padding[dim] = length, [0, length - 1] if from_end else [length - 1, 0]
    op.attributes["window_dimensions"] = integers_attr(window)
    pairs: Any = np.array(padding, np.int64)  # the bindings take any buffer; their stubs do not know numpy's
    op.attributes["padding"] = ir.DenseIntElementsAttr.get(pairs)


def _joined_before(scanned: ir.Value, dim: int, axes: Axes, kind: str, from_end: bool, at: Localizer) -> ir.Value:
    """What the shards before this one (after it, when scanning from the end) amount to, in the shape of the shard."""
    shape = shape_of(scanned)
    element = ir.RankedTensorType(scanned.type).element_type
    low, high = [0] * len(shape), list(shape)
    low[dim], high[dim] = (0, 1) if from_end else (shape[dim] - 1, shape[dim])
    total = stablehlo.slice(scanned, low, high, [1] * len(shape))
    totals = build.all_gather(total, at.mesh, mesh_axes=axes, gather_axis=dim)
    every = ir.RankedTensorType(totals.type)
    index = at.group_index(axes)
    number = stablehlo.iota(ir.RankedTensorType.get(every.shape, ir.RankedTensorType(index.type).element_type), dim)
    earlier = compare(number, broadcast_scalar(index, tuple(every.shape)), "GT" if from_end else "LT")
    ignored = neutral(kind, element)
    counted = stablehlo.select(earlier, totals, splat(ignored, every))
    rest = [size for other, size in enumerate(shape) if other != dim]
    reduced = ir.Operation.create(
        "stablehlo.reduce",
        [ir.RankedTensorType.get(rest, element)],
        [counted, splat(ignored, ir.RankedTensorType.get([], element))],
        {"dimensions": integers_attr([dim])},
        regions=1,
    )
    scalar = ir.RankedTensorType.get([], element)
    block = ir.Block.create_at_start(reduced.regions[0], [scalar, scalar], [ir.Location.current] * 2)
    with ir.InsertionPoint(block):
        stablehlo.return_([_combine(kind, *block.arguments)])
    others = [other for other in range(len(shape)) if other != dim]
    return stablehlo.broadcast_in_dim(scanned.type, reduced.results[0], others)


def _combine(kind: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """The op that a reduction of `kind` applies."""
    name = next(name for name, known in KINDS.items() if known == kind)
    combined: ir.Value = ir.Operation.create(f"stablehlo.{name}", [left.type], [left, right]).results[0]
    return combined
