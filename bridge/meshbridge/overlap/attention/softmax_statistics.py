"""Lets backward passes of attention reuse what their forward passes give, instead of recomputing it over all keys."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.ir.mlir import in_program_order, ir
from meshbridge.ir.uses import erase_dead
from meshbridge.ops.dimensions import REDUCE
from meshbridge.overlap.attention.attention_gradients import AttentionGradients
from meshbridge.overlap.attention.block_trace import BlockTrace
from meshbridge.overlap.attention.linear_reductions import sources_of
from meshbridge.overlap.attention.online_softmax import maxima_over_keys
from meshbridge.overlap.attention.softmax_grad_delta import row_sum
from meshbridge.overlap.attention.value_numbering import ValueNumbering


def reuse_softmax_statistics(found: Iterable[AttentionGradients]) -> None:
    """Takes what the forward pass has for each query: the largest score, the sum of exponentials, and the weighted values, of
    which the sum of weights times their gradients follows. The values of a block are compared once, before any of them goes."""
    twins: dict[ir.Block, ValueNumbering] = {}
    unread: set[ir.Operation] = set()
    for each in found:
        if each.home not in twins:
            twins[each.home] = ValueNumbering(each.home)
        unread |= _taken(each, twins[each.home])
    erase_dead(unread)


def _taken(found: AttentionGradients, twins: ValueNumbering) -> set[ir.Operation]:
    """What perhaps nothing reads any more."""
    reached = BlockTrace(found.home, frozenset())
    reached.reach(found.exponential.results[0], found.keys)
    maxima = {op for op, _ in maxima_over_keys(reached)}
    sums = found.forward_sums()
    for source, dim in sources_of(sums):
        reached.reach(source, dim)
    replaced: set[ir.Operation] = set()
    for op in in_program_order({*maxima, *(each.op for each in sums)}):
        value: ir.Value | None = twins.first(op.results[0])
        if value == op.results[0]:
            value = row_sum(op, found.exponential, found.keys, twins) if op.name == REDUCE else None
        if value is not None:
            op.results[0].replace_all_uses_with(value)
            replaced.add(op)
    return {*replaced, *(op for op, _ in reached.moving)} - {found.exponential, *found.ends.operations}
