"""dynamic_slice and dynamic_update_slice, whose starts are only known at run time.

Of a split dimension, every device takes or writes the part of the slice that falls into its shard.
"""

from __future__ import annotations

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.pieces import joining_kind
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, replace_result, spmd_lowering
from meshbridge.ops.traits import Trait


@sharding_rule_of("stablehlo.dynamic_slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SLICING, Trait.FUSIBLE), linear=(0,))
def dynamic_slice(op: ir.Operation) -> ShardingRule:
    """Dimensions that are taken entirely pass through (their start is clamped to 0); the others are a sum of what each shard has
    of the slice. Start indices are scalars."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    kind = joining_kind(element_of(op.results[0]))
    build = RuleBuilder()
    dims = tuple(build.loop(old, "" if old == new else kind) for old, new in zip(source, result, strict=True))
    kept = tuple(loops if old == new else () for loops, old, new in zip(dims, source, result, strict=True))
    return build.rule([dims, *[()] * (len(op.operands) - 1)], [kept])


@sharding_rule_of("stablehlo.dynamic_update_slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.IN_PLACE), linear=(0, 1))
def dynamic_update_slice(op: ir.Operation) -> ShardingRule:
    """Operand and result share all dimensions, the update those that it covers entirely. Start indices are scalars."""
    update, result = shape_of(op.operands[1]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in result)
    covered = tuple(loops if new == old else () for loops, new, old in zip(dims, update, result, strict=True))
    return build.rule([dims, covered, *[()] * (len(op.operands) - 2)], [dims])


@spmd_lowering("stablehlo.dynamic_slice")
def local_dynamic_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Takes from the shard what it has of the slice, and puts zeros for the rest."""
    emit, (value, *starts) = at.emit, op.operands
    sizes, whole, shard = list(integers(op.attributes["slice_sizes"])), at.global_shape(value), shape_of(value)
    shifts: dict[int, tuple[int, ir.Value]] = {}
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if axes and sizes[dim] == whole[dim]:
            sizes[dim] = shard[dim]
        elif axes:
            size, sizes[dim] = sizes[dim], min(sizes[dim], shard[dim])
            start = _local_start(starts[dim], whole[dim] - size, at.offset(axes, shard[dim]), emit)
            position = emit.clamp(0, start, shard[dim] - sizes[dim])
            starts[dim] = emit.convert(position, element_of(starts[dim]))
            shifts[dim] = size, emit.subtract(start, position)
    found = emit.dynamic_cut(value, starts, sizes)
    lines = []
    for dim, (size, skipped) in shifts.items():
        found, inside = _shifted(found, dim, skipped, size, emit)
        lines.append((dim, inside))
    if lines:
        found = emit.select(_mask(lines, found, emit), found, 0)
    replace_result(op, rule, option, found, at)


@spmd_lowering("stablehlo.dynamic_update_slice")
def local_dynamic_update_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Writes the part of the update that falls into the shard, and what is there already over itself elsewhere."""
    emit, (value, update, *starts) = at.emit, op.operands
    whole, shard, covered = at.global_shape(value), shape_of(value), at.global_shape(update)
    lines = []
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if axes and covered[dim] != whole[dim]:
            start = _local_start(starts[dim], whole[dim] - covered[dim], at.offset(axes, shard[dim]), emit)
            size = min(covered[dim], shard[dim])
            position = emit.clamp(0, start, shard[dim] - size)
            starts[dim] = emit.convert(position, element_of(starts[dim]))
            update, inside = _shifted(update, dim, emit.subtract(position, start), size, emit)
            lines.append((dim, inside))
    if lines:
        update = emit.select(_mask(lines, update, emit), update, emit.dynamic_cut(value, starts, shape_of(update)))
    replace_result(op, rule, option, emit.dynamic_paste(value, update, starts), at)


def _local_start(start: ir.Value, last: int, offset: ir.Value, emit: Builder) -> ir.Value:
    """Where a slice begins, which the op clamps to 0 … `last`, counted from this device's first element: tensor<i32>."""
    return emit.subtract(emit.convert(emit.clamp(0, start, last), element_of(offset)), offset)


def _shifted(value: ir.Value, dim: int, skipped: ir.Value, size: int, emit: Builder) -> tuple[ir.Value, ir.Value]:
    """The `size` elements of a dimension from `skipped` (which may be negative) on, and which of them exist."""
    length = shape_of(value)[dim]
    exists = emit.within(emit.count_from(skipped, size), length)
    if (length, size) == (1, 1):
        return value, exists
    begin = emit.clamp(0, emit.add(skipped, size), length + size)
    return emit.dynamic_slice(emit.pad_along(value, dim, 0, size, size), dim, begin, size), exists


def _mask(lines: list[tuple[int, ir.Value]], like: ir.Value, emit: Builder) -> ir.Value:
    """A mask in the shape of `like`, true where it is along each of the dimensions given."""
    return emit.all_of(emit.broadcast(exists, shape_of(like), [dim]) for dim, exists in lines)
