"""Pooling (reduce_window).

Each device reduces the windows of its shard of the result; a halo exchange fetches elements beyond its own edges.
"""

from __future__ import annotations

from dataclasses import replace

from meshbridge.ir.builder import element_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir
from meshbridge.ops.affine_access import ShardSummaries
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.reductions import body_kind, once_per_group
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of, unsplittable
from meshbridge.ops.scans import local_scan, scanned_dim
from meshbridge.ops.spmd import SpmdProgram, default_lowering, spmd_lowering
from meshbridge.ops.traits import Trait
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims
from meshbridge.ops.window_exchange import read_padded_window


def _is_total(window: WindowDim, source: int, result: int) -> bool:
    """True if a dimension has a single window, which covers all of it."""
    return result == 1 != source and window == WindowDim(source, window.stride)


@sharding_rule_of("stablehlo.reduce_window", traits=(Trait.PURE, Trait.SCALAR_REGION))
def reduce_window(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; one that a single window covers is a reduction, if the body is one known op."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    if 0 in (*source, *result):
        return ShardingRule((), unsplittable(op.operands), unsplittable(op.results))
    count = len(op.results)
    kind = body_kind(op)
    scanned = scanned_dim(op, source)
    build = RuleBuilder()
    operand: list[tuple[int, ...]] = []
    for dim, window in enumerate(window_dims(op)):
        if kind and _is_total(window, source[dim], result[dim]):
            operand.append(build.loop(source[dim], kind))
        else:
            operand.append(build.loop(result[dim]) if source[dim] > 1 else ())
            if dim == scanned:
                build.exchange(operand[dim], op, 0, dim, ShardSummaries())
            elif not window.is_single:
                for index in range(count):
                    build.exchange(operand[dim], op, index, dim, window.access(source[dim], result[dim]))
    result_dims = tuple(loops if size > 1 else () for loops, size in zip(operand, result, strict=True))
    return build.rule([tuple(operand)] * count + [()] * count, [result_dims] * count)


@spmd_lowering("stablehlo.reduce_window")
def local_reduce_window(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reduces the elements under the shard's windows. Outside of the global tensor, they read the body's neutral element, as in
    XLA, or if that is unknown the initial value, as in StableHLO."""
    count, kind = len(op.results), body_kind(op)
    source, result = at.global_shape(op.operands[0]), shape_of(op.results[0])
    split = tensor_split(rule.operands[0], option)
    scanned = scanned_dim(op, source)
    if scanned >= 0 and split[scanned]:
        local_scan(op, rule, option, at, scanned)
        return
    windows = window_dims(op)
    reduced = tuple(axis for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction for axis in axes)
    for dim, axes in enumerate(split):
        window = windows[dim]
        if not axes or window.is_single:
            continue
        if rule.loops[rule.operands[0][dim][0]].reduction:
            windows[dim] = WindowDim(shape_of(op.operands[0])[dim])
            continue
        access = window.access(source[dim], result[dim])
        for index in range(count):
            initial = op.operands[count + index]
            fill = at.builder.splat(initial.type, neutral(kind, element_of(initial))) if kind else initial
            places = read_padded_window(op.operands[index], dim, axes, access, fill, at)
            op.operands[index] = places.value
        windows[dim] = replace(window, low=places.low, high=places.high, base=places.dilation)
    for index in range(count, 2 * count):
        op.operands[index] = once_per_group(op.operands[index], kind, tuple(sorted(reduced)), at)
    set_window_dims(op, windows)
    default_lowering(op, rule, option, at)
