"""Peels the last iteration of a loop."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.analysis.trip_count import CountedLoop, counted_loop
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import ir


def peelable(loop: ir.Operation) -> CountedLoop | None:
    """The counter of `loop`, if its last iteration can be peeled: the loop certainly runs twice or more, and lowering the limit
    by a step removes one iteration."""
    counted = counted_loop(loop)
    tested = list(loop.regions[0].blocks[0].operations)[-1].operands[0]
    if counted is None or counted.trip_count < 2 or op_of(tested).name != "stablehlo.compare":  # annotations may be in between
        return None
    return counted if replace(counted.values, limit=_earlier(counted)).trip_count == counted.trip_count - 1 else None


def _earlier(counted: CountedLoop) -> int:
    """The limit minus one step."""
    return counted.values.wrapped(counted.values.limit - counted.values.step)


def peel(loop: ir.Operation, counted: CountedLoop) -> list[ir.Operation]:
    """Removes the last iteration from `loop`, and writes it after the loop; returns its operations."""
    _stop_earlier(loop.regions[0].blocks[0], counted)
    return _append_last_iteration(loop)


def _stop_earlier(condition: ir.Block, counted: CountedLoop) -> None:
    """Removes one iteration."""
    compare = op_of(list(condition.operations)[-1].operands[0])
    number = counted.limit_operand
    compare.operands[number] = Builder.before(compare).splat(compare.operands[number].type, _earlier(counted))


def _append_last_iteration(loop: ir.Operation) -> list[ir.Operation]:
    """Writes the loop's body after the loop; returns its operations."""
    copy = loop.clone(ip=ir.InsertionPoint.after(loop)).operation
    body = copy.regions[1].blocks[0]
    for result, final in zip(loop.results, copy.results, strict=True):
        result.replace_all_uses_with(final)
    for argument, result in zip(body.arguments, loop.results, strict=True):
        argument.replace_all_uses_with(result)
    *operations, end = [view.operation for view in body.operations]
    for op in operations:
        op.move_before(copy)
    for final, value in zip(copy.results, end.operands, strict=True):
        final.replace_all_uses_with(value)
    copy.erase()
    return operations
