"""Custom calls that say themselves how they may be split (`sdy.sharding_rule`, which JAX puts on batched linear algebra), for
whose target the user has said it (`register_sharding_rule`), or that are known (`known_calls`).

    stablehlo.custom_call @lapack_spotrf_ffi(%0) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, l, m]) …>}
    loops: parallel i
"""

from __future__ import annotations

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import CUSTOM_CALL, call_target, ir
from meshbridge.ops.attention_calls import is_attention, resize
from meshbridge.ops.known_calls import known_rule
from meshbridge.ops.option import Option
from meshbridge.ops.placements import places_away
from meshbridge.ops.refused import has_effect, is_callback
from meshbridge.ops.rule import SHARDING_RULE, ShardingRule, opaque, sharding_rule_of
from meshbridge.ops.sharding_rules import rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering


@sharding_rule_of(CUSTOM_CALL)
def custom_call(op: ir.Operation) -> ShardingRule:
    """The loops that the call's rule has; nothing is known of a call without one."""
    target = call_target(op)
    rule = rule_of(op, target) or known_rule(op, target)
    return opaque(op) if rule is None else rule.sharding_rule(op)


@replicated_lowering(CUSTOM_CALL)
@spmd_lowering(CUSTOM_CALL)
def local_custom_call(op: ir.Operation, nest: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The same call on smaller operands; its rule speaks of sizes that are no longer true."""
    if SHARDING_RULE in op.attributes:
        del op.attributes[SHARDING_RULE]
    default_lowering(op, nest, option, at)
    if is_attention(op):
        resize(op)
    if places_away(op):
        at.placed[op.results[0]] = op
    if is_callback(op) and has_effect(op) and not at.manual:
        _on_the_first_device(op, at)


def _on_the_first_device(op: ir.Operation, at: SpmdProgram) -> None:
    """Has one device call a Python function that has an effect, and no results: all of them hold its operands.

        stablehlo.if(%is_first) { stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) }

    Within manual computations each device calls it with what it holds, as JAX says of `jax.shard_map`.
    """
    at.write_before(op)
    only = at.emit.op("if", [], [at.is_first(tuple(range(at.mesh.rank)))], regions=2)
    for region in only.regions:
        block = region.blocks.append()
        Builder(op.location, ir.InsertionPoint(block)).op("return", [], [])
    op.move_before(only.regions[0].blocks[0].operations[0].operation)
