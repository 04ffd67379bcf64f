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
"""By kind, what arithmetic on `i1`, which is Boolean, computes."""


def body_kind(op: ir.Operation) -> str:
    """The reduction kind of a two-argument body `op(a, b)`; "" for any other body."""
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
    """True if `op` only sums up its operand along some dimensions."""
    return op.name == "stablehlo.reduce" and len(op.results) == 1 and body_kind(op) == "sum" and is_splat(op.operands[1], 0)


@sharding_rule_of("stablehlo.reduce", traits=(Trait.PURE, Trait.SCALAR_REGION))
def reduce(op: ir.Operation) -> ShardingRule:
    """Reduced dimensions are reduction loops if the body is one known op. Variadic reductions and other bodies have loops along
    which the shards' results are gathered. The other dimensions pass through."""
    reduced = integers(op.attributes["dimensions"])
    count = len(op.results)
    kind = body_kind(op)
    gathered = [] if kind else splittable_dims(op)
    build = RuleBuilder()
    shape = shape_of(op.operands[0])
    parallel = {dim: build.loop(size) for dim, size in enumerate(shape) if dim not in reduced}
    reduced_loops = {dim: build.loop(shape[dim], kind) for dim in sorted(reduced) if kind or dim in gathered}
    build.exchanges += gathered_slices(op, gathered, reduced_loops)
    operand = tuple(parallel.get(dim, reduced_loops.get(dim, ())) for dim in range(len(shape)))
    return build.rule([operand] * count + [()] * count, [tuple(parallel.values())] * count)


IDEMPOTENT = frozenset(("max", "min", "bitwise_and", "bitwise_or"))
"""Kinds for which an initial value may enter once per shard."""


def once_per_group(value: ir.Value, kind: str, axes: Axes, at: SpmdProgram) -> ir.Value:
    """`value` on the first device of each group along `axes`, the neutral element of `kind` on the others.

    A value that enters before an all-reduce over `axes` must enter once: a `reduce` that adds its initial value on every shard
    would count it several times.
    """
    if not axes or kind in IDEMPOTENT or at.is_neutral(value, kind):
        return value
    return at.builder.select(at.is_first(axes), value, neutral(kind, element_of(value)))


@replicated_lowering("stablehlo.reduce")
@spmd_lowering("stablehlo.reduce")
def local_reduce(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Each shard reduces its elements. The initial value enters on one device of each group, by a separate op.

    If the operand is a concatenation, which an all-to-all becomes, XLA applies the initial value once per piece, and drops it if
    a piece has one row. A body without a neutral element gets a barrier instead. Reductions of dimensions of size 1 do not
    change: XLA drops the initial value there with and without a split.
    """
    count = len(rule.results)
    if any(option[exchange.loop] for exchange in rule.exchanges):
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
        global_shape = at.global_shape(op.operands[0])
        if all(global_shape[dim] == 1 for dim in integers(op.attributes["dimensions"])):
            return
        kind = body_kind(op)
    if kind:
        _combine_after(op, kind, at)
    else:
        op.operands[0] = at.builder.barrier(op.operands[0])


@only_types("stablehlo.reduce")
def may_start_anywhere(op: ir.Operation, rule: ShardingRule, at: SpmdProgram) -> bool:
    """True if the initial value may enter every shard: it is neutral, or only dimensions of size 1 of a value that is not partial
    are reduced."""
    if len(rule.results) > 1:
        return False
    if kind := _kind(rule):
        return at.is_neutral(op.operands[1], kind)
    global_shape, sharding, _ = at.shards[op.operands[0]]
    return not sharding.partial_axes and prod(global_shape) == prod(shape_of(op.results[0]))


def _kind(rule: ShardingRule) -> str:
    """The reduction kind of the op's loops; "" if it has no reduction loop, or an unknown body."""
    return next((loop.reduction for loop in rule.loops if loop.reduction), "")


def _combine_after(op: ir.Operation, kind: str, at: SpmdProgram) -> None:
    """Reduces from the neutral element of `kind`, and then combines with the initial value."""
    initial = op.operands[1]
    if not at.is_neutral(initial, kind):
        op.operands[1] = at.builder.splat(initial.type, neutral(kind, element_of(initial)))
        at.replace_uses(op.results[0], lambda reduced: at.builder.elementwise(COMBINERS[kind], reduced, initial))
