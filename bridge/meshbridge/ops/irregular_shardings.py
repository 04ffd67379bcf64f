"""Elementwise ops on shards with halos or with offsets of their own (irregular shardings).

An elementwise op reads no element of another position, so it computes the halo of its result from the halos of its operands,
wherever a shard begins. Every other op computes on plain shards: its operands are resharded first.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.analysis.known_values import Splat, known
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.spmd import SpmdProgram
from meshbridge.resharding.boxes import buffer_shape


def shared_irregular_sharding(op: ir.Operation, rule: ShardingRule, shardings: Sequence[Sharding | None]) -> Sharding | None:
    """The irregular sharding in which `op` computes its results: that of all its operands except replicated scalars and splat
    constants; None if there is none or `op` is not elementwise.

    `shardings` are those of the operands, in order.
    """
    layouts = [sharding for sharding in shardings if sharding is not None and not sharding.is_plain]
    if not layouts or op.name not in ELEMENTWISE or layouts[0].partial_axes:
        return None
    for value, dims, sharding in zip(op.operands, rule.operands, shardings, strict=True):
        if sharding is None or sharding == layouts[0]:
            continue
        if not (isinstance(known(value), Splat) if dims else sharding.is_replicated):
            return None
    return layouts[0]


def irregular_operands(layout: Sharding, rule: ShardingRule, shardings: Sequence[Sharding | None]) -> tuple[Sharding | None, ...]:
    """The shardings that the operands of an op with an irregular sharding need; None for scalars, which need none."""
    return tuple(
        layout if dims and sharding is not None else None for dims, sharding in zip(rule.operands, shardings, strict=True)
    )


def splat_shard(value: ir.Value, target: Sharding, before: ir.Operation, at: SpmdProgram) -> ir.Value:
    """The shard under `target` of a splat constant, created before an op."""
    shape = at.global_shape(value)
    if 0 in shape:
        return at.reshard(value, target, before)
    builder = Builder.before(before)
    shard = builder.broadcast(builder.corner(value), buffer_shape(shape, at.mesh, target))
    return at.register(shard, shape, target)
