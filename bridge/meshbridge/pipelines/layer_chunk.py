"""The part of a scan over layers that one of several stages computes, each with its own layers, in one program for all of them.

while(%i = 0, %x, %w : tensor<4x8x8xf32>) {… i < 4 …}          of two stages, that at position %p:

while(%i = 0, %x, %w : tensor<2x8x8xf32>) {… i < 2 …}          reads its own stack at %i; the layer's number is %i + 2 * %p
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbridge.ir.builder import Builder, element_of, op_of
from meshbridge.ir.mlir import inside, ir, terminator
from meshbridge.pipelines.layer_scans import READ, WRITE, LayerScan, Position
from meshbridge.pipelines.leading_split import part_type
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.marker import erase_markers
from meshbridge.pipelines.reads import clone_reading, external_operands
from meshbridge.pipelines.stacks import Division


def layer_chunk(
    scan: LayerScan,
    division: Division,
    operands: Sequence[ir.Value],
    position: ir.Value,
    outer: Callable[[ir.Value], ir.Value],
    at: Builder,
) -> ir.Operation:
    """A loop over the layers of a stage; `division` gives all stages equally many.

    `operands` are those of the loop: a counter of 0, and stacks with the layers of a stage.
    `position` is that of the stage in the order in which the scan passes stages, a scalar of 32 bits; `outer` gives values from
    outside that the body reads."""
    op, counter, trips = scan.op, scan.counted.counter, division.layers_of(0)
    read = {operand for each in inside(op) for operand in each.operands}
    captured = {value: outer(value) for value in external_operands(op) if value in read}
    first = at.convert(at.elementwise("multiply", position, trips), element_of(op.operands[counter]))
    chunk = clone_reading(op, captured, at)
    erase_markers(chunk)
    for number, operand in enumerate(operands):
        chunk.operands[number] = operand
    _count(chunk, counter, trips, first)
    for number, place in scan.stacks.items():
        _narrow(chunk, number, place, counter, part_type(op.operands[number], division, 0))
    return chunk


def _count(chunk: ir.Operation, counter: int, trips: int, first: ir.Value) -> None:
    """Lets a loop count from 0 to `trips`; its body reads the counter plus `first`."""
    condition, body = (region.blocks[0] for region in chunk.regions)
    own = body.arguments[counter]
    start, end = Builder(chunk.location, ir.InsertionPoint.at_block_begin(body)), terminator(body)
    assert end is not None, "the body of a loop"
    number = start.add(own, first)
    own.replace_all_uses_except(number, op_of(number))
    at = Builder.before(end)
    end.operands[counter] = at.add(own, at.splat(own.type, 1))
    test = terminator(condition)
    assert test is not None, "the condition of a loop"
    test.operands[0] = Builder.before(test).compare("LT", condition.arguments[counter], trips)


def _narrow(chunk: ir.Operation, number: int, place: Position, counter: int, kind: ir.RankedTensorType) -> None:
    """Lets a loop carry the layers of a stage of one stack, which it reads or writes in the order of `place`."""
    body = chunk.regions[1].blocks[0]
    own, start = body.arguments[counter], Builder(chunk.location, ir.InsertionPoint.at_block_begin(body))
    index = own if place.sign > 0 else start.subtract(start.splat(own.type, kind.shape[0] - 1), own)
    for region in chunk.regions:
        region.blocks[0].arguments[number].set_type(kind)
    chunk.results[number].set_type(kind)
    waiting = [body.arguments[number]]
    while waiting:
        for use in list(waiting.pop().uses):
            user = use.owner.operation
            if user.name in (READ, WRITE):
                first = 1 if user.name == READ else 2
                user.operands[first] = Builder.before(user).convert(index, element_of(user.operands[first]))
            if user.name in (SHARD, WRITE):
                user.results[0].set_type(kind)
                waiting.append(user.results[0])
