"""Cumulative reductions (cumsum, cummax, …), which StableHLO writes as windows over all previous elements.

Along a split dimension each device scans its shard and combines it with the total of all shards before it. The devices exchange
one slice each.
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
    for dim, (size, scanned) in enumerate(zip(shape, windows, strict=True)):
        ends = {(size - 1, 0), (0, size - 1)}
        is_alone = all(window.is_single for index, window in enumerate(windows) if index != dim)
        if (
            size > 1
            and is_alone
            and scanned == WindowDim(size, low=scanned.low, high=scanned.high)
            and (scanned.low, scanned.high) in ends
        ):
            return dim
    return -1


def local_scan(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram, dim: int) -> None:
    """Scans the shard along the split dimension `dim`, then combines it with the total of the shards before it."""
    wanted = result_sharding(rule, option, 0, at.mesh)
    windows = window_dims(op)
    result, axes, kind = op.results[0], wanted.split_axes[dim], body_kind(op)
    size, length = windows[dim].size, shape_of(op.operands[0])[dim]
    from_end = windows[dim].low == 0
    initial = op.operands[1]
    op.operands[1] = at.builder.splat(initial.type, neutral(kind, element_of(initial)))
    if from_end and size % at.mesh.group_size(axes):
        masked = mask_padding(op.operands[0], dim, size, axes, kind, at)
        op.operands[0] = at.register(masked, at.global_shape(op.operands[0]), at.shards[op.operands[0]].sharding)
    windows[dim] = WindowDim(length, high=length - 1) if from_end else WindowDim(length, low=length - 1)
    set_window_dims(op, windows)
    default_lowering(op, rule, option, at)

    def with_previous(scanned: ir.Value) -> ir.Value:
        before = _total_before(scanned, dim, axes, kind, from_end, at)
        combined = at.builder.elementwise(COMBINERS[kind], scanned, before)
        return combined if at.is_neutral(initial, kind) else at.builder.elementwise(COMBINERS[kind], combined, initial)

    at.replace_uses(result, with_previous, wanted)


def _total_before(scanned: ir.Value, dim: int, axes: Axes, kind: str, from_end: bool, at: SpmdProgram) -> ir.Value:
    """The total of the shards before this one (after it, if scanning from the end), in the shape of the shard."""
    builder, shape = at.builder, shape_of(scanned)
    total = builder.slice(scanned, dim, 0 if from_end else shape[dim] - 1, 1)
    totals = build.all_gather(total, at.mesh, mesh_axes=axes, gather_axis=dim, at=builder)
    positions = builder.iota([at.mesh.group_size(axes)], 0)
    earlier = builder.compare("GT" if from_end else "LT", positions, at.group_index(axes))
    ignored = neutral(kind, element_of(scanned))
    reduced = builder.reduce(builder.select_along(dim, earlier, totals, ignored), ignored, [dim], COMBINERS[kind])
    return builder.broadcast(reduced, shape, [number for number in range(len(shape)) if number != dim])
