"""Custom calls that carry a rule (`sdy.sharding_rule`, which JAX puts on batched linear algebra), whose target has one
(`register_sharding_rule`), or that are known (`known_calls`).

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
from meshbridge.ops.placements import is_offload
from meshbridge.ops.rule import SHARDING_RULE, Dims, RuleBuilder, ShardingRule, opaque, sharding_rule_of, unsplittable
from meshbridge.ops.sharding_rules import rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering
from meshbridge.ops.unsupported import DEVICE, INSPECTION, has_effect, is_callback, is_partitioned_callback


@sharding_rule_of(CUSTOM_CALL, traits=())
def custom_call(op: ir.Operation) -> ShardingRule:
    """The loops of the call's rule; a call without one is opaque."""
    target = call_target(op)
    if is_partitioned_callback(op):
        return _by_shards(op)
    rule = rule_of(op, target) or known_rule(op, target)
    return opaque(op) if rule is None else rule.sharding_rule(op)


def _by_shards(op: ir.Operation) -> ShardingRule:
    """A loop per dimension number and size: each device passes its shards. The assignment takes every operand in its own
    sharding. The callback must see no padding, so loops split evenly."""
    build = RuleBuilder()
    loops: dict[tuple[int, int], tuple[int, ...]] = {}

    def dims(value: ir.Value) -> Dims:
        sizes = shape_of(value) if isinstance(value.type, ir.RankedTensorType) else ()
        for at in enumerate(sizes):
            if at not in loops:
                loops[at] = build.loop(at[1])
        return tuple([loops[at] for at in enumerate(sizes)])

    rule = build.rule([dims(value) for value in op.operands], list(unsplittable(op.results)))
    all_loops = tuple(range(len(rule.loops)))
    return replace(rule, coarse=all_loops, blocked=all_loops)


@replicated_lowering(CUSTOM_CALL)
@spmd_lowering(CUSTOM_CALL)
def local_custom_call(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The same call on smaller operands, without the rule, which states global sizes."""
    if SHARDING_RULE in op.attributes:
        del op.attributes[SHARDING_RULE]
    default_lowering(op, rule, option, at)
    if is_attention(op):
        resize(op)
    if call_target(op) == INSPECTION:
        answer(op, at)
    if is_offload(op):
        at.offloaded[op.results[0]] = op
    if is_callback(op) and has_effect(op) and not at.manual and not is_partitioned_callback(op):
        _on_one_device(op, at)


def _on_one_device(op: ir.Operation, at: SpmdProgram) -> None:
    """Has one device run a Python callback with an effect, whose operands are replicated, and broadcasts the results.

        %token, %made = stablehlo.if(%is_the_one) {
          %1:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%before, %0)
        } else {
          %before, zeros
        }
        %result = mesh.broadcast %made on @m mesh_axes = [0, 1] root = [0, 0]

    Within manual computations each device calls it with its own shards, as in `jax.shard_map`.
    """
    at.write_before(op)
    everywhere, results = tuple(range(at.mesh.rank)), list(op.results)
    position = at.mesh.ordered_devices().index(_device(op))
    only = at.builder.op("if", [result.type for result in results], [at.is_at(everywhere, position)], regions=2)
    received = [_received(op, result, value, position, at) for result, value in zip(results, only.results, strict=True)]
    for result, value in zip(results, received, strict=True):
        result.replace_all_uses_with(value)
    calling, waiting = (region.blocks.append() for region in only.regions)
    Builder(op.location, ir.InsertionPoint(calling)).op("return", [], results)
    op.move_before(calling.operations[0].operation)
    placeholder_builder = Builder(op.location, ir.InsertionPoint(waiting))
    placeholder_builder.op("return", [], [_in_place_of(op, result, placeholder_builder) for result in results])


def _device(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[DEVICE]).value if DEVICE in op.attributes else 0


def _received(op: ir.Operation, result: ir.Value, value: ir.Value, root: int, at: SpmdProgram) -> ir.Value:
    """Broadcasts a result from the device that has computed it."""
    if not isinstance(value.type, ir.RankedTensorType):
        return value
    everywhere = tuple(range(at.mesh.rank))
    if 0 not in shape_of(value):
        coordinates = [int(coordinate) for coordinate in np.unravel_index(root, at.mesh.shape)]
        value = build.broadcast(value, at.mesh, mesh_axes=everywhere, root=coordinates, at=at.builder)
    return at.register(value, at.global_shape(result), at.shards[result].sharding)


def _in_place_of(op: ir.Operation, result: ir.Value, builder: Builder) -> ir.Value:
    """A placeholder for the result on devices that do not run the callback."""
    if isinstance(result.type, ir.RankedTensorType):
        return builder.splat(result.type, 0)
    before = [operand for operand in op.operands if operand.type == result.type]
    return before[0] if before else builder.value("after_all", result.type, [])
