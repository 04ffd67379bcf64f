"""Cumulative reductions (cumsum, cummax, …), which StableHLO writes as windows over all that comes before.

Along a split dimension each device scans its shard, and what all shards before it amount to is joined on, at the price of
exchanging one slice per device.
"""

from __future__ import annotations

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers_attr
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.sharding import Axes
from meshbridge.ops.option import Option, result_sharding
from meshbridge.ops.reductions import KINDS, body_kind
from meshbridge.ops.rule import ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram, broadcast_scalar, compare, default_lowering, mask_padding, neutral, splat
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims


def scanned_dim(op: ir.Operation, shape: tuple[int, ...]) -> int:
    """The dimension along which a `reduce_window` of a tensor of `shape` is a cumulative reduction; -1 if there is none."""
    if len(op.results) != 1 or not body_kind(op):
        return -1
    windows = window_dims(op, len(shape))
    for dim, (size, window) in enumerate(zip(shape, windows, strict=True)):
        ends = {(size - 1, 0), (0, size - 1)}
        others = all(other.is_single for index, other in enumerate(windows) if index != dim)
        if (
            size > 1
            and others
            and window == WindowDim(size, low=window.low, high=window.high)
            and (window.low, window.high) in ends
        ):
            return dim
    return -1


def local_scan(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram, dim: int) -> None:
    """Scans the shard along the split dimension `dim`, then joins on what comes before it."""
    wanted = result_sharding(rule, option, 0, at.mesh)
    windows = window_dims(op, len(wanted.split_axes))
    result, axes, kind = op.results[0], wanted.split_axes[dim], body_kind(op)
    size, length = windows[dim].size, shape_of(op.operands[0])[dim]
    from_end = windows[dim].low == 0
    with ir.InsertionPoint(op), op.location:
        element = ir.RankedTensorType(op.operands[1].type).element_type
        initial, ignored = op.operands[1], neutral(kind, element)
        op.operands[1] = splat(ignored, initial.type)
        if from_end and size % at.mesh.group_size(axes):
            masked = mask_padding(op.operands[0], dim, size, axes, kind, at)
            op.operands[0] = at.adopt(masked, at.global_shape(op.operands[0]), at.shardings[op.operands[0]])
    windows[dim] = WindowDim(length, high=length - 1) if from_end else WindowDim(length, low=length - 1)
    set_window_dims(op, windows)
    default_lowering(op, rule, option, at)
    users = [(use.owner.operation, use.operand_number) for use in result.uses]
    with ir.InsertionPoint.after(op), op.location:
        before = _joined_before(result, dim, axes, kind, from_end, at)
        joined = _combine(kind, result, before)
        if not is_splat(initial, ignored):
            joined = _combine(kind, joined, broadcast_scalar(initial, shape_of(result)))
    for user, index in users:
        user.operands[index] = joined
    at.adopt(joined, at.global_shape(result), wanted)


def _joined_before(scanned: ir.Value, dim: int, axes: Axes, kind: str, from_end: bool, at: SpmdProgram) -> ir.Value:
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
