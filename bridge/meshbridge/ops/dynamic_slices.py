"""dynamic_slice and dynamic_update_slice, whose starts are only known at run time.

Of a split dimension, every device takes or writes the part of the slice that falls into its shard.
"""

from __future__ import annotations

from functools import reduce

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Emitter
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.pieces import joining_kind
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, broadcast_scalar, compare, replace_result, splat, spmd_lowering
from meshbridge.ops.window_exchange import pad


@sharding_rule_of("stablehlo.dynamic_slice")
def dynamic_slice(op: ir.Operation) -> ShardingRule:
    """Dimensions that are kept whole pass through (their start is clamped to 0); the others are a sum of what each shard has of
    the slice. Start indices are scalars."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    kind = joining_kind(ir.RankedTensorType(op.results[0].type).element_type)
    build = RuleBuilder()
    dims = tuple(build.loop(old, "" if old == new else kind) for old, new in zip(source, result, strict=True))
    kept = tuple(loops if old == new else () for loops, old, new in zip(dims, source, result, strict=True))
    return build.rule([dims, *[()] * (len(op.operands) - 1)], [kept])


@sharding_rule_of("stablehlo.dynamic_update_slice")
def dynamic_update_slice(op: ir.Operation) -> ShardingRule:
    """Operand and result share all dimensions, the update those that it covers whole. Start indices are scalars."""
    update, result = shape_of(op.operands[1]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in result)
    covered = tuple(loops if new == old else () for loops, new, old in zip(dims, update, result, strict=True))
    return build.rule([dims, covered, *[()] * (len(op.operands) - 2)], [dims])


@spmd_lowering("stablehlo.dynamic_slice")
def local_dynamic_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Takes from the shard what it has of the slice, and puts zeros for the rest."""
    value, *starts = op.operands
    sizes, whole, shard = list(integers(op.attributes["slice_sizes"])), at.global_shape(value), shape_of(value)
    shifts: dict[int, tuple[int, ir.Value]] = {}
    with ir.InsertionPoint(op), op.location:
        for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
            if axes and sizes[dim] == whole[dim]:
                sizes[dim] = shard[dim]
            elif axes:
                size, sizes[dim] = sizes[dim], min(sizes[dim], shard[dim])
                start = _local_start(starts[dim], whole[dim] - size, at.offset(axes, shard[dim]))
                place = _within(start, 0, shard[dim] - sizes[dim])
                starts[dim] = stablehlo.convert(starts[dim].type, place)
                shifts[dim] = size, stablehlo.subtract(start, place)
        found: ir.Value = stablehlo.dynamic_slice(value, starts, ir.DenseI64ArrayAttr.get(sizes))
        lines = []
        for dim, (size, skipped) in shifts.items():
            found, inside = _shifted(found, dim, skipped, size)
            lines.append((dim, inside))
        if lines:
            found = stablehlo.select(_mask(lines, found), found, splat(0, found.type))
    replace_result(op, rule, option, found, at)


@spmd_lowering("stablehlo.dynamic_update_slice")
def local_dynamic_update_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Writes the part of the update that falls into the shard, and what is there already over itself elsewhere."""
    value, update, *starts = op.operands
    whole, shard, covered = at.global_shape(value), shape_of(value), at.global_shape(update)
    lines = []
    with ir.InsertionPoint(op), op.location:
        for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
            if axes and covered[dim] != whole[dim]:
                start = _local_start(starts[dim], whole[dim] - covered[dim], at.offset(axes, shard[dim]))
                size = min(covered[dim], shard[dim])
                place = _within(start, 0, shard[dim] - size)
                starts[dim] = stablehlo.convert(starts[dim].type, place)
                update, inside = _shifted(update, dim, stablehlo.subtract(place, start), size)
                lines.append((dim, inside))
        if lines:
            present = stablehlo.dynamic_slice(value, starts, ir.DenseI64ArrayAttr.get(shape_of(update)))
            update = stablehlo.select(_mask(lines, update), update, present)
        found = stablehlo.dynamic_update_slice(value, update, starts)
    replace_result(op, rule, option, found, at)


def _local_start(start: ir.Value, last: int, offset: ir.Value) -> ir.Value:
    """Where a slice begins, which the op clamps to 0 … `last`, counted from this device's first element: tensor<i32>."""
    clamped = stablehlo.clamp(splat(0, start.type), start, splat(last, start.type))
    return stablehlo.subtract(stablehlo.convert(offset.type, clamped), offset)


def _within(start: ir.Value, low: int, high: int) -> ir.Value:
    return stablehlo.clamp(splat(low, start.type), start, splat(high, start.type))


def _shifted(value: ir.Value, dim: int, skipped: ir.Value, size: int) -> tuple[ir.Value, ir.Value]:
    """The `size` elements of a dimension from `skipped` (which may be negative) on, and which of them exist."""
    length = shape_of(value)[dim]
    line = ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32))
    place = stablehlo.iota(line, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0))
    place = stablehlo.add(place, broadcast_scalar(skipped, (size,)))
    exists = stablehlo.and_(compare(place, splat(0, line), "GE"), compare(place, splat(length, line), "LT"))
    if (length, size) == (1, 1):
        return value, exists
    zero = splat(0, ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type))
    begin = _within(stablehlo.add(skipped, splat(size, skipped.type)), 0, length + size)
    emit = Emitter(ir.Location.current, ir.InsertionPoint.current)
    return emit.dynamic_slice(pad(value, dim, zero, size, size), dim, begin, size), exists


def _mask(lines: list[tuple[int, ir.Value]], like: ir.Value) -> ir.Value:
    """A mask in the shape of `like`, true where it is along each of the dimensions given."""
    tensor = ir.RankedTensorType.get(shape_of(like), ir.IntegerType.get_signless(1))
    masks = [stablehlo.broadcast_in_dim(tensor, exists, ir.DenseI64ArrayAttr.get([dim])) for dim, exists in lines]
    return reduce(stablehlo.and_, masks)
