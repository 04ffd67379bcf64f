"""What partitioning makes of an op, worked out once for all ops that share a decision.

The layers of a model are alike, so most ops are decided as one before them was. Their operands come in the same shardings, and
their results have the same types: what differs from op to op is asked of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshbridge.decide.decisions import CHEAPEST, OpDecision, Shardings
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.ops.option import Option
from meshbridge.ops.refused import may_be_refused
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.spmd import ONLY_TYPES, Condition, Shard, SpmdProgram, default_lowering, lowering_of
from meshbridge.ops.traits import Trait, has


class PartitionTemplate(NamedTuple):
    """What becomes of the ops that share one decision."""

    resharded: tuple[tuple[int, Sharding], ...]
    "The operands that are sharded otherwise than the ops need them, and how they need them."
    results: tuple[Shard | None, ...] | None = None
    "What the results become, of ops of which nothing but the types changes; None for any other ops."
    targets: Shardings = ()
    "What these results are then resharded to, if to anything."
    condition: Condition | None = None
    "Under which nothing but the types changes, if that depends on the op."


def alike(op: ir.Operation, name: str, rule: ShardingRule, decision: OpDecision, at: SpmdProgram) -> PartitionTemplate:
    """What becomes of `op`, which has that name, and of all that share its decision."""
    needed = tuple(resharded(op, decision, at))
    if not _has_only_types(name, rule, decision, at):
        return PartitionTemplate(needed)
    at.carried = decision.carried
    computed = at.computed(rule, decision.option)
    shards = tuple([at.shard(result, sharding) for result, sharding in zip(op.results, computed, strict=True)])
    return PartitionTemplate(needed, shards, decision.results if decision.results != computed else (), ONLY_TYPES.get(name))


def resharded(op: ir.Operation, decision: OpDecision, at: SpmdProgram) -> Iterator[tuple[int, Sharding]]:
    """The operands that are sharded otherwise than an op needs them, and how it needs them."""
    for index, (value, need) in enumerate(zip(op.operands, decision.operands, strict=False)):
        if need is not None and need != at.held[value].sharding:
            yield index, need


def _has_only_types(name: str, rule: ShardingRule, decision: OpDecision, at: SpmdProgram) -> bool:
    """Whether nothing but the types of an op changes, as of most, if the condition on its kind holds."""
    if decision.why != CHEAPEST or decision.regions or decision.layout is not None or at.reasons is not None:
        return False
    if name.startswith("mesh.") or may_be_refused(name):
        return False
    if lowering_of(name, decision.option) is not default_lowering and name not in ONLY_TYPES:
        return False
    return rule.has_rule and not padded_loops(name, rule, decision.option, at.mesh)


def padded_loops(name: str, rule: ShardingRule, option: Option, mesh: Mesh) -> list[int]:
    """The loops along which an op would reduce padding of uneven shards (a look-up does not read it, windows see to it)."""
    if not rule.reduces or has(name, Trait.SLICING):
        return []
    exchanged = {each.loop for each in rule.exchanges}
    return [
        number
        for number, (loop, axes) in enumerate(zip(rule.loops, option, strict=True))
        if axes and loop.reduction and loop.size % mesh.group_size(axes) and number not in exchanged
    ]
