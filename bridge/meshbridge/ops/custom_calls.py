"""Custom calls that say themselves how they may be split (`sdy.sharding_rule`, which JAX puts on batched linear algebra), for
whose target the user has said it (`register_sharding_rule`), or that are known (`known_calls`).

    stablehlo.custom_call @lapack_spotrf_ffi(%0) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, l, m]) …>}
    loops: parallel i
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshbridge.dialect import build
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import CUSTOM_CALL, call_target, ir
from meshbridge.ops.attention_calls import is_attention, resize
from meshbridge.ops.inspections import answer
from meshbridge.ops.known_calls import known_rule
from meshbridge.ops.option import Option
from meshbridge.ops.placements import places_away
from meshbridge.ops.refused import DEVICE, INSPECTION, has_effect, is_callback, is_of_shards
from meshbridge.ops.rule import SHARDING_RULE, Dims, RuleBuilder, ShardingRule, opaque, sharding_rule_of, unsplittable
from meshbridge.ops.sharding_rules import rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering


@sharding_rule_of(CUSTOM_CALL, traits=())
def custom_call(op: ir.Operation) -> ShardingRule:
    """The loops that the call's rule has; nothing is known of a call without one."""
    target = call_target(op)
    if is_of_shards(op):
        return _by_shards(op)
    rule = rule_of(op, target) or known_rule(op, target)
    return opaque(op) if rule is None else rule.sharding_rule(op)


def _by_shards(op: ir.Operation) -> ShardingRule:
    """Each device takes the shards that it holds, here as if dimensions of one place and size were sharded alike: what decides
    takes each operand as it comes. A device sees no padding."""
    build = RuleBuilder()
    loops: dict[tuple[int, int], tuple[int, ...]] = {}

    def dims(value: ir.Value) -> Dims:
        sizes = shape_of(value) if isinstance(value.type, ir.RankedTensorType) else ()
        for at in enumerate(sizes):
            if at not in loops:
                loops[at] = build.loop(at[1])
        return tuple([loops[at] for at in enumerate(sizes)])

    rule = build.rule([dims(value) for value in op.operands], list(unsplittable(op.results)))
    every = tuple(range(len(rule.loops)))
    return replace(rule, coarse=every, blocked=every)


@replicated_lowering(CUSTOM_CALL)
@spmd_lowering(CUSTOM_CALL)
def local_custom_call(op: ir.Operation, nest: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The same call on smaller operands; its rule speaks of sizes that are no longer true."""
    if SHARDING_RULE in op.attributes:
        del op.attributes[SHARDING_RULE]
    default_lowering(op, nest, option, at)
    if is_attention(op):
        resize(op)
    if call_target(op) == INSPECTION:
        answer(op, at)
    if places_away(op):
        at.placed[op.results[0]] = op
    if is_callback(op) and has_effect(op) and not at.manual and not is_of_shards(op):
        _on_one_device(op, at)


def _on_one_device(op: ir.Operation, at: SpmdProgram) -> None:
    """Has one device call a Python function that has an effect, of which all devices hold the operands, and sends its results to
    the others.

        %token, %made = stablehlo.if(%is_the_one) {
          %1:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%before, %0)
        } else {
          %before, zeros
        }
        %result = mesh.broadcast %made on @m mesh_axes = [0, 1] root = [0, 0]

    Within manual computations each device calls it with what it holds, as JAX says of `jax.shard_map`.
    """
    at.write_before(op)
    everywhere, results = tuple(range(at.mesh.rank)), list(op.results)
    position = at.mesh.ordered_devices().index(_device(op))
    only = at.emit.op("if", [result.type for result in results], [at.is_at(everywhere, position)], regions=2)
    received = [_received(op, result, value, position, at) for result, value in zip(results, only.results, strict=True)]
    for result, value in zip(results, received, strict=True):
        result.replace_all_uses_with(value)
    calling, waiting = (region.blocks.append() for region in only.regions)
    Builder(op.location, ir.InsertionPoint(calling)).op("return", [], results)
    op.move_before(calling.operations[0].operation)
    other = Builder(op.location, ir.InsertionPoint(waiting))
    other.op("return", [], [_in_place_of(op, result, other) for result in results])


def _device(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[DEVICE]).value if DEVICE in op.attributes else 0


def _received(op: ir.Operation, result: ir.Value, made: ir.Value, root: int, at: SpmdProgram) -> ir.Value:
    """What every device has of the result that one device has made."""
    if not isinstance(made.type, ir.RankedTensorType):
        return made
    everywhere = tuple(range(at.mesh.rank))
    if 0 not in shape_of(made):
        coordinates = [int(each) for each in np.unravel_index(root, at.mesh.shape)]
        made = build.broadcast(made, at.mesh, mesh_axes=everywhere, root=coordinates, at=at.emit)
    return at.adopt(made, at.global_shape(result), at.held[result].sharding)


def _in_place_of(op: ir.Operation, result: ir.Value, emit: Builder) -> ir.Value:
    """What a device has of a result that it does not make itself."""
    if isinstance(result.type, ir.RankedTensorType):
        return emit.splat(result.type, 0)
    before = [operand for operand in op.operands if operand.type == result.type]
    return before[0] if before else emit.value("after_all", result.type, [])
