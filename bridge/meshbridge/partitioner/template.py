"""The partitioning of an op, computed once for all ops that share a decision.

The layers of a model are equal, so most ops share the decision of an earlier one. Their operands have the same shardings, and
their results the same types; properties that may differ are checked for each op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshbridge.decide.decisions import CHEAPEST, OpDecision, Shardings
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.ops.option import Option
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.spmd import ONLY_TYPES, Condition, Shard, SpmdProgram, default_lowering, lowering_of
from meshbridge.ops.traits import Trait, has
from meshbridge.ops.unsupported import may_be_unsupported


class PartitionTemplate(NamedTuple):
    """The partitioning of the ops that share one decision."""

    resharded: tuple[tuple[int, Sharding], ...]
    "The operands to reshard, with their target shardings."
    results: tuple[Shard | None, ...] | None = None
    "The new results of ops of which only the types change; None for other ops."
    targets: Shardings = ()
    "The shardings to which these results are then resharded, if any."
    condition: Condition | None = None
    "The condition under which only the types change, if it depends on the op."


def partition_template(
    op: ir.Operation, name: str, rule: ShardingRule, decision: OpDecision, at: SpmdProgram
) -> PartitionTemplate:
    """The partitioning of `op`, which has that name, and of all ops that share its decision."""
    needed = tuple(resharded(op, decision, at))
    if not _has_only_types(name, rule, decision, at):
        return PartitionTemplate(needed)
    at.carried = decision.carried
    computed = at.computed(rule, decision.option)
    shards = tuple([at.shard(result, sharding) for result, sharding in zip(op.results, computed, strict=True)])
    return PartitionTemplate(needed, shards, decision.results if decision.results != computed else (), ONLY_TYPES.get(name))


def resharded(op: ir.Operation, decision: OpDecision, at: SpmdProgram) -> Iterator[tuple[int, Sharding]]:
    """The operands whose shardings differ from those that an op needs, with the latter."""
    for index, (value, need) in enumerate(zip(op.operands, decision.operands, strict=False)):
        if need is not None and need != at.shards[value].sharding:
            yield index, need


def _has_only_types(name: str, rule: ShardingRule, decision: OpDecision, at: SpmdProgram) -> bool:
    """Whether only the types of an op change, as for most ops, if the condition on its kind holds."""
    if decision.why != CHEAPEST or decision.regions or decision.layout is not None or at.reasons is not None:
        return False
    if name.startswith("mesh.") or may_be_unsupported(name):
        return False
    if lowering_of(name, decision.option) is not default_lowering and name not in ONLY_TYPES:
        return False
    return rule.has_rule and not padded_loops(name, rule, decision.option, at.mesh)


def padded_loops(name: str, rule: ShardingRule, option: Option, mesh: Mesh) -> list[int]:
    """The loops along which an op would reduce padding of uneven shards (lookups do not read it, windows handle it)."""
    if not rule.reduces or has(name, Trait.SLICING):
        return []
    exchanged = {exchange.loop for exchange in rule.exchanges}
    return [
        number
        for number, (loop, axes) in enumerate(zip(rule.loops, option, strict=True))
        if axes and loop.reduction and loop.size % mesh.group_size(axes) and number not in exchanged
    ]
