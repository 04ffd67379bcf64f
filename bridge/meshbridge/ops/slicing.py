"""Ops that take tensors apart and put them together: slice, pad, concatenate, reverse.

Along a split dimension each device computes its shard of the result from windows of the operands (`affine_access`), so a shift by
one element sends one element per line. A single element of a sharded dimension is on one device: the result is a sum to which the
others add zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.affine_access import AffineAccess
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replace_result, spmd_lowering
from meshbridge.ops.traits import ALL_OPERANDS, Trait
from meshbridge.ops.window_exchange import read_padded_window, read_window, slice_window


def joining_kind(element: ir.Type) -> str:
    """The reduction that combines one shard's elements with the others' zeros; bits have no sum."""
    return "bitwise_or" if str(element) == "i1" else "sum"


_CUTS = ("start_indices", "limit_indices", "strides")
_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def accesses(op: ir.Operation, source: Sequence[int], result: Sequence[int]) -> list[AffineAccess]:
    """The access of each dimension of a slice, pad or reversal, for the shapes of its operand and result."""
    sizes = list(zip(result, source, strict=True))
    if op.name == "stablehlo.slice":
        starts, strides = integers(op.attributes["start_indices"]), integers(op.attributes["strides"])
        return [AffineAccess(*pair, stride, -start) for pair, stride, start in zip(sizes, strides, starts, strict=True)]
    if op.name == "stablehlo.reverse":
        turned = integers(op.attributes["dimensions"])
        return [AffineAccess(*pair, -1, 1 - pair[0]) if dim in turned else AffineAccess(*pair) for dim, pair in enumerate(sizes)]
    lows, _, interiors = (integers(op.attributes[name]) for name in _PADDING)
    # A single element has no interior padding.
    dilations = [interior + 1 if size > 1 else 1 for interior, size in zip(interiors, source, strict=True)]
    return [AffineAccess(*pair, low=low, dilation=dilation) for pair, low, dilation in zip(sizes, lows, dilations, strict=True)]


@sharding_rule_of(
    "stablehlo.slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.SLICING, Trait.FUSIBLE), linear=(0,)
)
def slice_(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; a single element is a sum."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    build = RuleBuilder()
    kind = joining_kind(element_of(op.results[0]))
    if 0 in result:
        return build.rule([((),) * len(source)], [((),) * len(result)])
    dims = [
        build.loop(size, kind) if piece == 1 != size else build.loop(piece) for size, piece in zip(source, result, strict=True)
    ]
    for dim, access in enumerate(accesses(op, source, result)):
        if result[dim] > 1 and source[dim] != result[dim]:
            build.exchange(dims[dim], op, 0, dim, access)
    result_dims = tuple(loops if size > 1 else () for loops, size in zip(dims, result, strict=True))
    return build.rule([tuple(dims)], [result_dims])


@spmd_lowering("stablehlo.slice")
def local_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reads windows of split dimensions, in which the stride selects a shard; the device that holds a single element reads it."""
    value, result = op.operands[0], shape_of(op.results[0])
    source, local = at.global_shape(value), shape_of(value)
    starts, limits, strides = cuts = [list(integers(op.attributes[name])) for name in _CUTS]
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if not axes:
            continue
        if source[dim] == result[dim]:
            limits[dim] = local[dim]
        elif result[dim] == 1:
            value = element_or_zero(value, dim, axes, starts[dim], at)
            starts[dim], limits[dim], strides[dim] = 0, 1, 1
        else:
            value = read_window(value, dim, axes, accesses(op, source, result)[dim], None, at)
            starts[dim], limits[dim] = 0, shape_of(value)[dim]
    op.operands[0] = value
    _set_attributes(op, _CUTS, cuts)
    default_lowering(op, rule, option, at)


def _set_attributes(op: ir.Operation, names: Sequence[str], entries: Sequence[Sequence[int]]) -> None:
    for name, values in zip(names, entries, strict=True):
        op.attributes[name] = integers_attr(values)


def element_or_zero(value: ir.Value, dim: int, axes: Axes, index: int, at: SpmdProgram) -> ir.Value:
    """Element `index` of the global dimension on the device that holds it, zero on the others."""
    shard = shape_of(value)[dim]
    is_here = at.builder.compare("EQ", at.group_index(axes), index // shard)
    return at.builder.select(is_here, at.builder.slice(value, dim, index % shard, 1), 0)


@sharding_rule_of("stablehlo.pad", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.FUSIBLE), linear=(0, 1))
def pad(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; dimensions of size 1 of the operand are replicated."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = [build.loop(size) for size in result]
    if 0 in source or 0 in result:
        return build.rule([((),) * len(source), ()], [((),) * len(result)])
    for dim, access in enumerate(accesses(op, source, result)):
        if source[dim] > 1 and not access.is_identity:
            build.exchange(dims[dim], op, 0, dim, access)
    operand = tuple(loops if size > 1 else () for loops, size in zip(dims, source, strict=True))
    return build.rule([operand, ()], [tuple(dims)])


@spmd_lowering("stablehlo.pad")
def local_pad(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reads the elements of a shard, with the padding between them and around the global tensor."""
    operand, padding = op.operands
    source, result = at.global_shape(operand), shape_of(op.results[0])
    split = tensor_split(rule.results[0], option)
    low, high, interior = edges = [list(integers(op.attributes[name])) for name in _PADDING]
    for dim, access in enumerate(accesses(op, source, result)):
        if not split[dim] or access.is_identity:
            continue
        if source[dim] == 1:
            operand = slice_window(operand, dim, split[dim], access, padding, at)
            low[dim] = high[dim] = interior[dim] = 0
        else:
            places = read_padded_window(operand, dim, split[dim], access, padding, at)
            operand = places.value
            low[dim], high[dim], interior[dim] = places.low, places.high, places.dilation - 1
    op.operands[0] = operand
    _set_attributes(op, _PADDING, edges)
    default_lowering(op, rule, option, at)


@sharding_rule_of("stablehlo.concatenate", traits=(Trait.PURE, Trait.MOVEMENT, Trait.FUSIBLE), linear=ALL_OPERANDS)
def concatenate(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; operands of size 1 along the concat one are replicated."""
    result = shape_of(op.results[0])
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in result)
    operands = []
    for index, access in enumerate(_concatenate_accesses(op, along)):
        shares = access.source > 1
        if shares and len(op.operands) > 1:
            build.exchange(dims[along], op, index, along, access)
        operands.append(dims if shares else (*dims[:along], (), *dims[along + 1 :]))
    return build.rule(operands, [dims])


def _concatenate_accesses(op: ir.Operation, along: int, sizes: Sequence[int] = ()) -> list[AffineAccess]:
    sizes = sizes or [shape_of(value)[along] for value in op.operands]
    return [AffineAccess(sum(sizes), size, low=end - size) for size, end in zip(sizes, accumulate(sizes), strict=True)]


@spmd_lowering("stablehlo.concatenate")
def local_concatenate(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reads each element of the shard from the operand that its position falls into."""
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    axes = tensor_split(rule.results[0], option)[along]
    if not axes or len(op.operands) == 1:
        default_lowering(op, rule, option, at)
        return
    accesses = _concatenate_accesses(op, along, [at.global_shape(value)[along] for value in op.operands])
    concat: ir.Value | None = None
    for value, access in reversed(list(zip(op.operands, accesses, strict=True))):
        if not access.source:
            continue
        if access.source > 1:
            window = read_window(value, along, axes, access, None, at)
        else:
            shape = shape_of(value)
            shape = (*shape[:along], access.window(at.mesh.group_size(axes)).length, *shape[along + 1 :])
            window = at.builder.broadcast(value, shape, range(len(shape)))
        concat = window if concat is None else _before(access.low + access.source, window, concat, along, axes, at)
    assert concat is not None, "a split dimension has elements"
    replace_result(op, rule, option, concat, at)


def _before(limit: int, before: ir.Value, after: ir.Value, dim: int, axes: Axes, at: SpmdProgram) -> ir.Value:
    """The elements of `before` at positions of the global dimension below `limit`, those of `after` from there on."""
    builder, length = at.builder, shape_of(before)[dim]
    position = builder.count_from(at.offset(axes, length), length)
    return builder.select_along(dim, builder.compare("LT", position, limit), before, after)


@sharding_rule_of("stablehlo.reverse", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.FUSIBLE), linear=(0,))
def reverse(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; a reversed one exchanges shards."""
    shape = shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in shape)
    for dim, access in enumerate(accesses(op, shape, shape)):
        if access.stride < 0:
            build.exchange(dims[dim], op, 0, dim, access)
    return build.rule([dims], [dims])


@spmd_lowering("stablehlo.reverse")
def local_reverse(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Reverses the shard from the opposite end."""
    split = tensor_split(rule.operands[0], option)
    global_shape = at.global_shape(op.operands[0])
    for dim, access in enumerate(accesses(op, global_shape, global_shape)):
        if split[dim] and access.stride < 0:
            op.operands[0] = read_window(op.operands[0], dim, split[dim], access, None, at)
    default_lowering(op, rule, option, at)
