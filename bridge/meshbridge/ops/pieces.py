"""Ops that take tensors apart and put them together: slice, pad, concatenate, reverse.

Along a split dimension each device computes its shard of the result from windows of the operands (`reach`), so that a shift by
one element costs one element on the wire per line. A single element of a sharded dimension belongs to one device: a
sum to which the others add zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.reach import Reach
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replace_result, spmd_lowering
from meshbridge.ops.traits import ALL_OPERANDS, Trait
from meshbridge.ops.window_exchange import cut_window, read_places, read_window


def joining_kind(element: ir.Type) -> str:
    """The reduction that joins one shard's elements with zeros of the others; bits have no sum."""
    return "bitwise_or" if str(element) == "i1" else "sum"


_CUTS = ("start_indices", "limit_indices", "strides")
_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def reaches(op: ir.Operation, source: Sequence[int], result: Sequence[int]) -> list[Reach]:
    """What each dimension of the result of a slice, pad or reversal reads of its operand, by the shapes of both."""
    sizes = list(zip(result, source, strict=True))
    if op.name == "stablehlo.slice":
        starts, strides = integers(op.attributes["start_indices"]), integers(op.attributes["strides"])
        return [Reach(*pair, stride, -start) for pair, stride, start in zip(sizes, strides, starts, strict=True)]
    if op.name == "stablehlo.reverse":
        turned = integers(op.attributes["dimensions"])
        return [Reach(*pair, -1, 1 - pair[0]) if dim in turned else Reach(*pair) for dim, pair in enumerate(sizes)]
    lows, _, interiors = (integers(op.attributes[name]) for name in _PADDING)
    # There is nothing between elements where there is one.
    dilations = [interior + 1 if size > 1 else 1 for interior, size in zip(interiors, source, strict=True)]
    return [Reach(*pair, low=low, dilation=dilation) for pair, low, dilation in zip(sizes, lows, dilations, strict=True)]


@sharding_rule_of(
    "stablehlo.slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.SLICING, Trait.FUSIBLE), linear=(0,)
)
def slice_(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared, a single element is a sum."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    build = RuleBuilder()
    kind = joining_kind(element_of(op.results[0]))
    if 0 in result:
        return build.rule([((),) * len(source)], [((),) * len(result)])
    dims = [build.loop(old, kind) if new == 1 != old else build.loop(new) for old, new in zip(source, result, strict=True)]
    for dim, reach in enumerate(reaches(op, source, result)):
        if result[dim] > 1 and source[dim] != result[dim]:
            build.exchange(dims[dim], op, 0, dim, reach)
    kept = tuple(loops if size > 1 else () for loops, size in zip(dims, result, strict=True))
    return build.rule([tuple(dims)], [kept])


@spmd_lowering("stablehlo.slice")
def local_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Windows of split dimensions, of which the stride leaves a shard; a single element is taken by who has it."""
    value, kept = op.operands[0], shape_of(op.results[0])
    source, held = at.global_shape(value), shape_of(value)
    starts, limits, strides = cuts = [list(integers(op.attributes[name])) for name in _CUTS]
    for dim, axes in enumerate(tensor_split(rule.operands[0], option)):
        if not axes:
            continue
        if source[dim] == kept[dim]:
            limits[dim] = held[dim]
        elif kept[dim] == 1:
            value = element_or_zero(value, dim, axes, starts[dim], at)
            starts[dim], limits[dim], strides[dim] = 0, 1, 1
        else:
            value = read_window(value, dim, axes, reaches(op, source, kept)[dim], None, at)
            starts[dim], limits[dim] = 0, shape_of(value)[dim]
    op.operands[0] = value
    _set_attributes(op, _CUTS, cuts)
    default_lowering(op, rule, option, at)


def _set_attributes(op: ir.Operation, names: Sequence[str], entries: Sequence[Sequence[int]]) -> None:
    for name, each in zip(names, entries, strict=True):
        op.attributes[name] = integers_attr(each)


def element_or_zero(value: ir.Value, dim: int, axes: Axes, index: int, at: SpmdProgram) -> ir.Value:
    """Element `index` of the global dimension on the device that holds it, zero on the others."""
    shard = shape_of(value)[dim]
    is_here = at.emit.compare("EQ", at.group_index(axes), index // shard)
    return at.emit.select(is_here, at.emit.slice(value, dim, index % shard, 1), 0)


@sharding_rule_of("stablehlo.pad", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.FUSIBLE), linear=(0, 1))
def pad(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; the operand of size 1 along one is replicated."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = [build.loop(size) for size in result]
    if 0 in source or 0 in result:
        return build.rule([((),) * len(source), ()], [((),) * len(result)])
    for dim, reach in enumerate(reaches(op, source, result)):
        if source[dim] > 1 and not reach.is_identity:
            build.exchange(dims[dim], op, 0, dim, reach)
    operand = tuple(loops if size > 1 else () for loops, size in zip(dims, source, strict=True))
    return build.rule([operand, ()], [tuple(dims)])


@spmd_lowering("stablehlo.pad")
def local_pad(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The places that a shard covers: elements and the padding between them and around the global tensor."""
    found, value = op.operands
    source, result = at.global_shape(found), shape_of(op.results[0])
    split = tensor_split(rule.results[0], option)
    low, high, interior = edges = [list(integers(op.attributes[name])) for name in _PADDING]
    for dim, reach in enumerate(reaches(op, source, result)):
        if not split[dim] or reach.is_identity:
            continue
        if source[dim] == 1:
            found = cut_window(found, dim, split[dim], reach, value, at)
            low[dim] = high[dim] = interior[dim] = 0
        else:
            places = read_places(found, dim, split[dim], reach, value, at)
            found = places.value
            low[dim], high[dim], interior[dim] = places.low, places.high, places.dilation - 1
    op.operands[0] = found
    _set_attributes(op, _PADDING, edges)
    default_lowering(op, rule, option, at)


@sharding_rule_of("stablehlo.concatenate", traits=(Trait.PURE, Trait.MOVEMENT, Trait.FUSIBLE), linear=ALL_OPERANDS)
def concatenate(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; operands of size 1 along the concatenated one are replicated."""
    result = shape_of(op.results[0])
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in result)
    operands = []
    for index, reach in enumerate(_concatenate_reaches(op, along)):
        shares = reach.source > 1
        if shares and len(op.operands) > 1:
            build.exchange(dims[along], op, index, along, reach)
        operands.append(dims if shares else (*dims[:along], (), *dims[along + 1 :]))
    return build.rule(operands, [dims])


def _concatenate_reaches(op: ir.Operation, along: int, sizes: Sequence[int] = ()) -> list[Reach]:
    sizes = sizes or [shape_of(value)[along] for value in op.operands]
    return [Reach(sum(sizes), size, low=end - size) for size, end in zip(sizes, accumulate(sizes), strict=True)]


@spmd_lowering("stablehlo.concatenate")
def local_concatenate(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Each element of the shard from the operand into which its place falls."""
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    axes = tensor_split(rule.results[0], option)[along]
    if not axes or len(op.operands) == 1:
        default_lowering(op, rule, option, at)
        return
    reaches = _concatenate_reaches(op, along, [at.global_shape(value)[along] for value in op.operands])
    found: ir.Value | None = None
    for value, reach in reversed(list(zip(op.operands, reaches, strict=True))):
        if not reach.source:
            continue
        if reach.source > 1:
            window = read_window(value, along, axes, reach, None, at)
        else:
            shape = shape_of(value)
            shape = (*shape[:along], reach.window(at.mesh.group_size(axes)).length, *shape[along + 1 :])
            window = at.emit.broadcast(value, shape, range(len(shape)))
        found = window if found is None else _before(reach.low + reach.source, window, found, along, axes, at)
    assert found is not None, "a split dimension has elements"
    replace_result(op, rule, option, found, at)


def _before(limit: int, left: ir.Value, right: ir.Value, dim: int, axes: Axes, at: SpmdProgram) -> ir.Value:
    """The elements of `left` at positions of the global dimension below `limit`, those of `right` behind."""
    emit, length = at.emit, shape_of(left)[dim]
    position = emit.count_from(at.offset(axes, length), length)
    return emit.select_along(dim, emit.compare("LT", position, limit), left, right)


@sharding_rule_of("stablehlo.reverse", traits=(Trait.PURE, Trait.MOVEMENT, Trait.STRIDED, Trait.FUSIBLE), linear=(0,))
def reverse(op: ir.Operation) -> ShardingRule:
    """Every dimension is shared; shards of a reversed one change places."""
    shape = shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in shape)
    for dim, reach in enumerate(reaches(op, shape, shape)):
        if reach.stride < 0:
            build.exchange(dims[dim], op, 0, dim, reach)
    return build.rule([dims], [dims])


@spmd_lowering("stablehlo.reverse")
def local_reverse(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The shard that stands at the other end, reversed."""
    split = tensor_split(rule.operands[0], option)
    whole = at.global_shape(op.operands[0])
    for dim, reach in enumerate(reaches(op, whole, whole)):
        if split[dim] and reach.stride < 0:
            op.operands[0] = read_window(op.operands[0], dim, split[dim], reach, None, at)
    default_lowering(op, rule, option, at)
