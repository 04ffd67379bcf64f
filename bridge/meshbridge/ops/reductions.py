"""Reductions along some dimensions, which pass the others through."""

from __future__ import annotations

from math import prod

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import element_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.generic_reductions import gathered_slices, reduce_shards, splittable_dims
from meshbridge.ops.option import Option
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, only_types, replicated_lowering, spmd_lowering
from meshbridge.ops.traits import Trait

KINDS = {combiner: kind for kind, combiner in COMBINERS.items() if kind != "average"}
"""The reduction kind that a body of one StableHLO op computes."""

KINDS_OF_BITS = {"sum": "bitwise_or", "max": "bitwise_or", "product": "bitwise_and", "min": "bitwise_and"}
"""What these compute on `i1`: arithmetic is Boolean there."""


def body_kind(op: ir.Operation) -> str:
    """The reduction kind of a two-argument body `op(a, b)`; "" if the body is anything else."""
    blocks = list(op.regions[0].blocks)
    if len(blocks) != 1 or len(blocks[0].arguments) != 2:
        return ""
    body = [inner.operation for inner in blocks[0].operations]
    if len(body) != 2 or set(body[0].operands) != set(blocks[0].arguments) or list(body[1].operands) != list(body[0].results):
        return ""
    kind = KINDS.get(body[0].name.removeprefix("stablehlo."), "")
    is_bit = str(ir.RankedTensorType(body[0].results[0].type).element_type) == "i1"
    return KINDS_OF_BITS.get(kind, kind) if is_bit else kind


def is_sum(op: ir.Operation) -> bool:
    """Whether `op` adds up its operand along some dimensions, and nothing else."""
    return op.name == "stablehlo.reduce" and len(op.results) == 1 and body_kind(op) == "sum" and is_splat(op.operands[1], 0)


@sharding_rule_of("stablehlo.reduce", traits=(Trait.PURE, Trait.SCALAR_REGION))
def reduce(op: ir.Operation) -> ShardingRule:
    """Reduced dimensions are reduction loops if the body is one known op. With any other body, or of several values at once, they
    have loops too, along which the shards' results are gathered. The others pass through."""
    reduced = integers(op.attributes["dimensions"])
    count = len(op.results)
    kind = body_kind(op)
    joined = [] if kind else splittable_dims(op)
    build = RuleBuilder()
    shape = shape_of(op.operands[0])
    parallel = {dim: build.loop(size) for dim, size in enumerate(shape) if dim not in reduced}
    walked = {dim: build.loop(shape[dim], kind) for dim in sorted(reduced) if kind or dim in joined}
    build.exchanges += gathered_slices(op, joined, walked)
    operand = tuple(parallel.get(dim, walked.get(dim, ())) for dim in range(len(shape)))
    return build.rule([operand] * count + [()] * count, [tuple(parallel.values())] * count)


IDEMPOTENT = frozenset(("max", "min", "bitwise_and", "bitwise_or"))
"""Kinds for which an initial value may enter once per shard."""


def once_per_group(value: ir.Value, kind: str, axes: Axes, at: SpmdProgram) -> ir.Value:
    """`value` on the first device of each group along `axes`, the neutral element of `kind` on the others.

    What enters a value that is all-reduced over `axes` must enter it once: adding a `reduce`'s initial value on every shard
    would count it several times.
    """
    if not axes or kind in IDEMPOTENT or at.is_neutral(value, kind):
        return value
    return at.emit.select(at.is_first(axes), value, neutral(kind, element_of(value)))


@replicated_lowering("stablehlo.reduce")
@spmd_lowering("stablehlo.reduce")
def local_reduce(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Each shard reduces what it holds; the initial value enters on one device of each group, by an op of its own.

    XLA takes the initial value of a reduced concatenation, which an all-to-all becomes, in once per piece, and drops it where a
    piece has one row. A body without neutral element has a barrier instead. Reductions of dimensions of size 1 stay as they
    are: XLA drops the initial value whether they are split or not.
    """
    count = len(rule.results)
    if any(option[each.loop] for each in rule.exchanges):
        reduce_shards(op, rule, option, at)
    else:
        computed = at.computed(rule, option)[0]
        if axes := computed.partial_axes:
            for index in range(count, 2 * count):
                op.operands[index] = once_per_group(op.operands[index], computed.partial_kind, axes, at)
        default_lowering(op, rule, option, at)
    if count > 1:
        return
    kind = _kind(rule)
    if not kind:
        whole = at.global_shape(op.operands[0])
        if all(whole[dim] == 1 for dim in integers(op.attributes["dimensions"])):
            return
        kind = body_kind(op)
    if kind:
        _combine_after(op, kind, at)
    else:
        op.operands[0] = at.emit.barrier(op.operands[0])


@only_types("stablehlo.reduce")
def may_start_anywhere(op: ir.Operation, rule: ShardingRule, at: SpmdProgram) -> bool:
    """Whether the initial value may enter every shard, whatever XLA makes of it: it is the neutral element, or nothing is reduced
    but dimensions of size 1 of a value that is not partial."""
    if len(rule.results) > 1:
        return False
    if kind := _kind(rule):
        return at.is_neutral(op.operands[1], kind)
    whole, sharding, _ = at.held[op.operands[0]]
    return not sharding.partial_axes and prod(whole) == prod(shape_of(op.results[0]))


def _kind(rule: ShardingRule) -> str:
    """By what an op reduces along its loops; "" if it has none to reduce, or that is not known."""
    return next((loop.reduction for loop in rule.loops if loop.reduction), "")


def _combine_after(op: ir.Operation, kind: str, at: SpmdProgram) -> None:
    """Reduces from the neutral element of `kind`, and combines what comes out with the initial value."""
    initial = op.operands[1]
    if not at.is_neutral(initial, kind):
        op.operands[1] = at.emit.splat(initial.type, neutral(kind, element_of(initial)))
        at.amend(op.results[0], lambda reduced: at.emit.elementwise(COMBINERS[kind], reduced, initial))
