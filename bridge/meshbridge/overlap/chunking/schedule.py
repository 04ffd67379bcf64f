"""Writes chunks in place of a segment's operations: each after what it reads and before what reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, terminator
from meshbridge.overlap.chunking.region import Segment, readers


def rewrite(segments: Iterable[Segment]) -> None:
    """Has segments, which share no operation, work on pieces. Of those that need what others give and give what these need, as
    some may whose operations mix, the last ones stay."""
    by_block: dict[ir.Block, list[Segment]] = {}
    for each in segments:
        by_block.setdefault(each.ops[0].block, []).append(each)
    for block, found in by_block.items():
        while (order := _order(block, found)) is None:
            found.pop()
        _write(block, order)


def _order(block: ir.Block, segments: Sequence[Segment]) -> list[ir.Operation | Segment] | None:
    """The block's operations, all but the last one, and segments instead of theirs, each as early as its last operation stands;
    None where they wait for one another."""
    nodes: list[ir.Operation | Segment] = [view.operation for view in block.operations]
    numbers = {op: number for number, op in enumerate(nodes) if isinstance(op, ir.Operation)}
    for segment in segments:
        last = numbers[segment.ops[-1]]
        nodes[last] = segment
        numbers |= dict.fromkeys(segment.ops, last)
    following: list[set[int]] = [set() for _ in nodes]
    for op, number in numbers.items():
        for result in op.results:
            following[number].update(numbers[reader] for reader in readers(result, block))
    waiting = [0] * len(nodes)
    for number, after in enumerate(following):
        after.discard(number)
        for each in after:
            waiting[each] += 1
    ready = [number for number in set(numbers.values()) if not waiting[number]]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(nodes[number])
        for each in following[number]:
            waiting[each] -= 1
            if not waiting[each]:
                heappush(ready, each)
    return order if len(order) == len(set(numbers.values())) else None


def _write(block: ir.Block, order: Sequence[ir.Operation | Segment]) -> None:
    old: list[ir.Operation] = []
    end = terminator(block)
    assert end is not None, "a block of a function or a loop"
    for each in order:
        if not isinstance(each, Segment):
            if each != end:
                each.move_before(end)
            continue
        parts = each.write(Builder(end.location, ir.InsertionPoint(end)), {})
        for value, part in parts.items():
            value.replace_all_uses_with(part)
        old += each.ops
    for op in reversed(old):
        op.erase()
