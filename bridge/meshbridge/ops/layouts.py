"""Ops that compute on shards with halos, or with offsets of their own, as they are.

An elementwise op needs no element but its own, so it computes the halo of its result from the halos of its operands, and does
not care where a shard begins. Every other op computes on plain shards: its operands are resharded first.
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


def shared_layout(op: ir.Operation, rule: ShardingRule, shardings: Sequence[Sharding | None]) -> Sharding | None:
    """The sharding with halo sizes or offsets in which `op` computes its results: that of all its operands, replicated scalars
    and constants of one value aside; None if there is none or `op` is not elementwise.

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


def in_layout(layout: Sharding, rule: ShardingRule, shardings: Sequence[Sharding | None]) -> tuple[Sharding | None, ...]:
    """What the operands of an op that computes in a shared layout are to be: as they are if scalars."""
    return tuple(layout if dims and held is not None else None for dims, held in zip(rule.operands, shardings, strict=True))


def filled(value: ir.Value, target: Sharding, before: ir.Operation, at: SpmdProgram) -> ir.Value:
    """The shard under `target` of a constant whose elements are all the same (`Splat`), made before an op."""
    shape = at.global_shape(value)
    if 0 in shape:
        return at.reshard(value, target, before)
    emit = Builder.before(before)
    made = emit.broadcast(emit.corner(value), buffer_shape(shape, at.mesh, target))
    return at.adopt(made, shape, target)
