"""Makes backward passes of attention reuse results of their forward passes, instead of recomputing them over all keys."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.ir.mlir import in_program_order, ir
from meshbridge.ir.uses import erase_dead
from meshbridge.ops.dimensions import REDUCE
from meshbridge.overlap.attention.attention_gradients import AttentionGradients
from meshbridge.overlap.attention.block_trace import BlockTrace
from meshbridge.overlap.attention.linear_reductions import sources_of
from meshbridge.overlap.attention.online_softmax import maxima_over_keys
from meshbridge.overlap.attention.softmax_grad_delta import softmax_grad_delta
from meshbridge.overlap.attention.value_numbering import ValueNumbering


def reuse_softmax_statistics(backward_passes: Iterable[AttentionGradients]) -> None:
    """Reuses the forward pass's maximum and sum of exponentials per query, and its result, from which the sum of weights times
    their gradients follows. Values of a block are numbered once, before any is erased."""
    numberings: dict[ir.Block, ValueNumbering] = {}
    unread: set[ir.Operation] = set()
    for attention in backward_passes:
        if attention.home not in numberings:
            numberings[attention.home] = ValueNumbering(attention.home)
        unread |= _taken(attention, numberings[attention.home])
    erase_dead(unread)


def _taken(attention: AttentionGradients, numbering: ValueNumbering) -> set[ir.Operation]:
    """Operations that may become dead."""
    trace = BlockTrace(attention.home, frozenset())
    trace.trace(attention.exponential.results[0], attention.keys)
    maxima = {op for op, _ in maxima_over_keys(trace)}
    sums = attention.forward_sums()
    for source, dim in sources_of(sums):
        trace.trace(source, dim)
    replaced: set[ir.Operation] = set()
    for op in in_program_order({*maxima, *(reduction.op for reduction in sums)}):
        value: ir.Value | None = numbering.first(op.results[0])
        if value == op.results[0]:
            value = softmax_grad_delta(op, attention.exponential, attention.keys, numbering) if op.name == REDUCE else None
        if value is not None:
            op.results[0].replace_all_uses_with(value)
            replaced.add(op)
    return {*replaced, *(op for op, _ in trace.moving)} - {attention.exponential, *attention.ends.operations}
