"""dynamic_slice and dynamic_update_slice, whose starts are known only at run time.

Along a split dimension, each device reads or writes the part of the slice that falls into its shard.
"""

from __future__ import annotations

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.slicing import joining_kind
from meshbridge.ops.spmd import SpmdProgram, replace_result, spmd_lowering
from meshbridge.ops.traits import Trait


@sharding_rule_of("stablehlo.dynamic_slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SLICING, Trait.FUSIBLE), linear=(0,))
def dynamic_slice(op: ir.Operation) -> ShardingRule:
    """Dimensions taken entirely pass through (their start is clamped to 0). Each other one is a sum of the parts that the shards
    hold. Start indices are scalars."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    kind = joining_kind(element_of(op.results[0]))
    build = RuleBuilder()
    dims = tuple(build.loop(size, "" if size == slice_size else kind) for size, slice_size in zip(source, result, strict=True))
    result_dims = tuple(loops if size == slice_size else () for loops, size, slice_size in zip(dims, source, result, strict=True))
    return build.rule([dims, *[()] * (len(op.operands) - 1)], [result_dims])


@sharding_rule_of("stablehlo.dynamic_update_slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.IN_PLACE), linear=(0, 1))
def dynamic_update_slice(op: ir.Operation) -> ShardingRule:
    """Operand and result share all dimensions, the update those that it covers entirely. Start indices are scalars."""
    update, result = shape_of(op.operands[1]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in result)
    covered = tuple(loops if written == size else () for loops, written, size in zip(dims, update, result, strict=True))
    return build.rule([dims, covered, *[()] * (len(op.operands) - 2)], [dims])


@spmd_lowering("stablehlo.dynamic_slice")
def local_dynamic_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reads the part of the slice that the shard holds, with zeros elsewhere."""
    builder, (value, *starts) = at.builder, op.operands
    sizes, global_shape, shard = list(integers(op.attributes["slice_sizes"])), at.global_shape(value), shape_of(value)
    shifts: dict[int, tuple[int, ir.Value]] = {}
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if axes and sizes[dim] == global_shape[dim]:
            sizes[dim] = shard[dim]
        elif axes:
            size, sizes[dim] = sizes[dim], min(sizes[dim], shard[dim])
            start = _local_start(starts[dim], global_shape[dim] - size, at.offset(axes, shard[dim]), builder)
            position = builder.clamp(0, start, shard[dim] - sizes[dim])
            starts[dim] = builder.convert(position, element_of(starts[dim]))
            shifts[dim] = size, builder.subtract(start, position)
    piece = builder.dynamic_cut(value, starts, sizes)
    lines = []
    for dim, (size, skipped) in shifts.items():
        piece, inside = _shifted(piece, dim, skipped, size, builder)
        lines.append((dim, inside))
    if lines:
        piece = builder.select(_mask(lines, piece, builder), piece, 0)
    replace_result(op, rule, option, piece, at)


@spmd_lowering("stablehlo.dynamic_update_slice")
def local_dynamic_update_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Writes the part of the update that falls into the shard; elsewhere the shard's own elements are written back."""
    builder, (value, update, *starts) = at.builder, op.operands
    global_shape, shard, covered = at.global_shape(value), shape_of(value), at.global_shape(update)
    lines = []
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if axes and covered[dim] != global_shape[dim]:
            start = _local_start(starts[dim], global_shape[dim] - covered[dim], at.offset(axes, shard[dim]), builder)
            size = min(covered[dim], shard[dim])
            position = builder.clamp(0, start, shard[dim] - size)
            starts[dim] = builder.convert(position, element_of(starts[dim]))
            update, inside = _shifted(update, dim, builder.subtract(position, start), size, builder)
            lines.append((dim, inside))
    if lines:
        update = builder.select(_mask(lines, update, builder), update, builder.dynamic_cut(value, starts, shape_of(update)))
    replace_result(op, rule, option, builder.dynamic_paste(value, update, starts), at)


def _local_start(start: ir.Value, limit: int, offset: ir.Value, builder: Builder) -> ir.Value:
    """The start of a slice, which the op clamps to 0 … `limit`, relative to this device's first element: tensor<i32>."""
    return builder.subtract(builder.convert(builder.clamp(0, start, limit), element_of(offset)), offset)


def _shifted(value: ir.Value, dim: int, skipped: ir.Value, size: int, builder: Builder) -> tuple[ir.Value, ir.Value]:
    """The `size` elements of a dimension from `skipped` on, which may be negative, and a mask of those that exist."""
    length = shape_of(value)[dim]
    exists = builder.within(builder.count_from(skipped, size), length)
    if (length, size) == (1, 1):
        return value, exists
    begin = builder.clamp(0, builder.add(skipped, size), length + size)
    return builder.dynamic_slice(builder.pad_along(value, dim, 0, size, size), dim, begin, size), exists


def _mask(lines: list[tuple[int, ir.Value]], like: ir.Value, builder: Builder) -> ir.Value:
    """A mask in the shape of `like`: the conjunction of one mask per dimension."""
    return builder.all_of(builder.broadcast(exists, shape_of(like), [dim]) for dim, exists in lines)
