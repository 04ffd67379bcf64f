"""Cumulative reductions (cumsum, cummax, …), which StableHLO writes as windows over all that comes before.

Along a split dimension each device scans its shard, and what all shards before it amount to is joined on, at the price of
exchanging one slice per device.
"""

from __future__ import annotations

from meshbridge.dialect import build
from meshbridge.ir.builder import element_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.option import Option, result_sharding
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.rule import ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, mask_padding
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims


def scanned_dim(op: ir.Operation, shape: tuple[int, ...]) -> int:
    """The dimension along which a `reduce_window` of a tensor of `shape` is a cumulative reduction; -1 if there is none."""
    if len(op.results) != 1 or not body_kind(op):
        return -1
    windows = window_dims(op)
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
    windows = window_dims(op)
    result, axes, kind = op.results[0], wanted.split_axes[dim], body_kind(op)
    size, length = windows[dim].size, shape_of(op.operands[0])[dim]
    from_end = windows[dim].low == 0
    initial = op.operands[1]
    op.operands[1] = at.emit.splat(initial.type, neutral(kind, element_of(initial)))
    if from_end and size % at.mesh.group_size(axes):
        masked = mask_padding(op.operands[0], dim, size, axes, kind, at)
        op.operands[0] = at.adopt(masked, at.global_shape(op.operands[0]), at.held[op.operands[0]].sharding)
    windows[dim] = WindowDim(length, high=length - 1) if from_end else WindowDim(length, low=length - 1)
    set_window_dims(op, windows)
    default_lowering(op, rule, option, at)

    def joined(scanned: ir.Value) -> ir.Value:
        before = _joined_before(scanned, dim, axes, kind, from_end, at)
        found = at.emit.elementwise(COMBINERS[kind], scanned, before)
        return found if at.is_neutral(initial, kind) else at.emit.elementwise(COMBINERS[kind], found, initial)

    at.amend(result, joined, wanted)


def _joined_before(scanned: ir.Value, dim: int, axes: Axes, kind: str, from_end: bool, at: SpmdProgram) -> ir.Value:
    """What the shards before this one (after it, when scanning from the end) amount to, in the shape of the shard."""
    emit, shape = at.emit, shape_of(scanned)
    total = emit.slice(scanned, dim, 0 if from_end else shape[dim] - 1, 1)
    totals = build.all_gather(total, at.mesh, mesh_axes=axes, gather_axis=dim, at=emit)
    number = emit.iota([at.mesh.group_size(axes)], 0)
    earlier = emit.compare("GT" if from_end else "LT", number, at.group_index(axes))
    ignored = neutral(kind, element_of(scanned))
    reduced = emit.reduce(emit.select_along(dim, earlier, totals, ignored), ignored, [dim], COMBINERS[kind])
    return emit.broadcast(reduced, shape, [other for other in range(len(shape)) if other != dim])
