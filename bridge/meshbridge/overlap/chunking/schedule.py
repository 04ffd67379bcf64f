"""Replaces a segment's operations by chunks, after their operands and before their readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ancestor_in, ir, terminator
from meshbridge.overlap.chunking.region import Segment


def rewrite(segments: Iterable[Segment]) -> None:
    """Computes disjoint segments in chunks. If segments depend on each other in both directions, because their operations mix,
    the last ones stay."""
    by_block: dict[ir.Block, list[Segment]] = {}
    for segment in segments:
        by_block.setdefault(segment.operations[0].block, []).append(segment)
    for block, in_block in by_block.items():
        while (order := _order(block, in_block)) is None:
            in_block.pop()
        _write(block, order)


def _order(block: ir.Block, segments: Sequence[Segment]) -> list[ir.Operation | Segment] | None:
    """The block's operations except the last one, with segments in place of theirs, each as early as its last operation; None if
    there is a cycle."""
    nodes: list[ir.Operation | Segment] = [view.operation for view in block.operations]
    numbers = {op: number for number, op in enumerate(nodes) if isinstance(op, ir.Operation)}
    for segment in segments:
        position = numbers[segment.operations[-1]]
        nodes[position] = segment
        numbers |= dict.fromkeys(segment.operations, position)
    following: list[set[int]] = [set() for _ in nodes]
    for op, number in numbers.items():
        for result in op.results:
            following[number].update(numbers[reader] for reader in _readers(result, block))
    waiting = [0] * len(nodes)
    for number, followers in enumerate(following):
        followers.discard(number)
        for follower in followers:
            waiting[follower] += 1
    ready = [number for number in set(numbers.values()) if not waiting[number]]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(nodes[number])
        for follower in following[number]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, follower)
    return order if len(order) == len(set(numbers.values())) else None


def _write(block: ir.Block, order: Sequence[ir.Operation | Segment]) -> None:
    replaced: list[ir.Operation] = []
    end = terminator(block)
    assert end is not None, "a block of a function or a loop"
    for node in order:
        if not isinstance(node, Segment):
            if node != end:
                node.move_before(end)
            continue
        parts = node.write(Builder(end.location, ir.InsertionPoint(end)), {})
        for value, part in parts.items():
            value.replace_all_uses_with(part)
        replaced += node.operations
    for op in reversed(replaced):
        op.erase()


def _readers(value: ir.Value, block: ir.Block) -> Iterator[ir.Operation]:
    """The operations of a block that read `value`, or contain an operation that does."""
    for use in value.uses:
        op = use.owner.operation
        reader = op if op.block == block else ancestor_in(block, op)
        if reader is not None:
            yield reader
