"""Scans over layers in a loop of microbatches: what they read and write for one layer at a time.

    %1:4 = stablehlo.while(%i = 0, %x = …, %w = %weights, %ys = zeros) {
        %layer = dynamic_slice %w, %i, 0, 0          reads a stack at `i`
        %ys' = dynamic_update_slice %ys, …, %i, 0    writes one at `i`
    }

A backward pass reads and writes at `L - 1 - i`. Scans that read or write the same stacks are one family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshbridge.analysis.executions import executed
from meshbridge.analysis.known_values import known_integer
from meshbridge.analysis.trip_count import CountedLoop, counted_loop
from meshbridge.cost.flops import amount
from meshbridge.ir.builder import shape_of
from meshbridge.ir.mlir import COMPARISONS, OpError, ancestor_in, comparison_direction, ir, terminator_operands, walk
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.pipelines.loop import SHARD, WHILE
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.pipelines.stacks import Division

FEWER = "choose fewer stages, or for an interleaved schedule a Schedule of fewer chunks"

READ, WRITE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


class Position(NamedTuple):
    """The position `sign * i + offset` along a stack, for the scan's counter `i`."""

    sign: int
    offset: int

    def at(self, trip: int) -> int:
        """The position in that trip."""
        return self.sign * trip + self.offset


@dataclass(frozen=True, eq=False)
class LayerScan:
    """A loop that counts from 0 by 1, with the positions at which it reads or writes its stacks, by number."""

    op: ir.Operation
    counted: CountedLoop
    stacks: dict[int, Position]

    @property
    def trips(self) -> int:
        """The trip count: the layers."""
        return self.counted.trip_count

    @property
    def body(self) -> ir.Block:
        """What each layer computes."""
        block: ir.Block = self.op.regions[1].blocks[0]
        return block

    def carried(self) -> list[int]:
        """The numbers of what passes from layer to layer and changes, but the counter."""
        returned = terminator_operands(self.body)
        arguments = self.body.arguments
        return [
            number
            for number in range(len(arguments))
            if number != self.counted.counter
            and number not in self.stacks
            and look_through(returned[number], (SHARD,)) != arguments[number]
        ]

    @property
    def descends(self) -> bool:
        """Whether it begins at the last layer of its stacks."""
        return next(iter(self.stacks.values())).sign < 0

    def runs(self, division: Division) -> list[tuple[int, int]]:
        """The parts of the stacks that the scan passes, in order, each with the first trip there. Raises OpError for stacks that
        are passed in several orders."""
        runs = set()
        for position in self.stacks.values():
            parts = [division.part_with(position.at(trip)) for trip in range(self.trips)]
            starts = [trip for trip in range(self.trips) if not trip or parts[trip] != parts[trip - 1]]
            runs.add(tuple((parts[trip], trip) for trip in starts))
        if len(runs) > 1:
            raise OpError(
                self.op, "reads one stack of layers forward and another one backward, so that no stages could follow it"
            )
        return list(runs.pop())

    @cached_property
    def markers(self) -> list[tuple[ir.Operation, Marker]]:
        """The boundaries of stages in it."""
        return [(op, marker) for op in walk(self.op) if (marker := marker_of(op)) is not None]


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """A program's loop of microbatches with a family of scans over layers, in program order."""

    loop: ir.Operation
    family: tuple[LayerScan, ...]

    @property
    def trips(self) -> int:
        """The number of layers."""
        return self.family[0].trips

    @property
    def scans(self) -> tuple[int, ...]:
        """By layer, the number of its scan."""
        return (0,) * self.trips

    def points(self, unit: int) -> tuple[int, ...]:
        """The layers with which a chunk may begin that has a multiple of so many."""
        return tuple(range(unit, self.trips, unit))


def find_layers(main: ir.Operation, module: ir.Module, chunks: int) -> LayerLoop | None:
    """The family of scans over layers that has to be cut for so many chunks: one that marks a stage in its body, or, if no stage
    is marked anywhere, one with more work than a chunk. None if there is none. The program's calls are inlined.

    Raises OpError for boundaries in a scan beside others, and for fewer layers than chunks.
    """
    marked = [op for op in walk(main) if marker_of(op) is not None]
    loop = _loop(main, module)
    if chunks == 1 or loop is None:
        return None
    body = loop.regions[1].blocks[0]
    scans = list(_scans(body))
    inner = [op for op in marked if op.block != body]
    work = _work(module, body, [scan.op for scan in scans])
    if marked and not inner:
        return None
    holding = [scan for scan in scans if scan.markers] if inner else scans
    if not holding:
        return None
    total = work.pop(None)
    first = max(holding, key=lambda scan: work[scan.op.results[0]])
    family = _family(scans, first)
    if inner:
        _check_marks(marked, family)
    elif sum(work[scan.op.results[0]] for scan in family) * chunks <= total:
        return None
    if first.trips < chunks:
        raise OpError(first.op, f"runs {first.trips} layers, expected at least one for each of {chunks} stages", FEWER)
    return LayerLoop(loop, family)


def _loop(main: ir.Operation, module: ir.Module) -> ir.Operation | None:
    """The loop of a program's function with the most work."""
    block = main.regions[0].blocks[0]
    loops = [view.operation for view in block.operations if view.operation.name == WHILE]
    work = _work(module, block, loops)
    return max(loops, key=lambda op: work[op.results[0]], default=None)


def _work(module: ir.Module, block: ir.Block, ops: Iterable[ir.Operation]) -> dict[ir.Value | None, float]:
    """The work of ops of a block, by first result; by None, that of the whole block."""
    work: dict[ir.Value | None, float] = {op.results[0]: 0.0 for op in ops} | {None: 0.0}
    for op, times in executed(module, weigh=amount):
        outer = ancestor_in(block, op)
        if outer is not None:
            done = amount([(op, times)])
            work[None] += done
            if len(outer.results) and outer.results[0] in work:
                work[outer.results[0]] += done
    return work


def _check_marks(marked: Sequence[ir.Operation], family: Sequence[LayerScan]) -> None:
    """Raises OpError for a boundary outside of the family."""
    within = [op for scan in family for op, _ in scan.markers]
    for op in marked:
        if op not in within:
            marker = marker_of(op)
            name = marker.name if marker is not None else ""
            hint = "mark stages in the body of one scan over layers, or between scans over the layers of each stage"
            raise OpError(op, f"of stage {name!r} is beside boundaries in a scan over layers", hint)


def _family(scans: Sequence[LayerScan], first: LayerScan) -> tuple[LayerScan, ...]:
    """The scans with the same trip count that share stacks with `first`, or with one that does."""
    alike = [scan for scan in scans if scan.trips == first.trips]
    family, stacks = {first}, set(_stack_values(first))
    while True:
        more = {scan for scan in alike if scan not in family and not stacks.isdisjoint(_stack_values(scan))}
        if not more:
            return tuple(scan for scan in alike if scan in family)
        family |= more
        stacks.update(value for scan in more for value in _stack_values(scan))


def _stack_values(scan: LayerScan) -> Iterator[ir.Value]:
    for number in scan.stacks:
        yield look_through(scan.op.operands[number], (SHARD,))
        yield scan.op.results[number]


def _scans(body: ir.Block) -> Iterator[LayerScan]:
    for view in body.operations:
        op = view.operation
        counted = counted_loop(op) if op.name == WHILE else None
        if counted is None or (counted.values.start, counted.values.step, counted.values.direction) != (0, 1, "LT"):
            continue
        stacks = {
            number: position
            for number in range(len(op.operands))
            if number != counted.counter and (position := _stack_position(op, number, counted)) is not None
        }
        if stacks:
            yield LayerScan(op, counted, stacks)


def _stack_position(op: ir.Operation, number: int, counted: CountedLoop) -> Position | None:
    """The position at which each trip reads or writes a carried value alone; None for one that is no stack."""
    body = op.regions[1].blocks[0]
    argument = body.arguments[number]
    value = op.operands[number]
    if not isinstance(value.type, ir.RankedTensorType) or not (shape := shape_of(value)) or shape[0] != counted.trip_count:
        return None
    positions = set()
    returned = look_through(terminator_operands(body)[number], (SHARD,))
    waiting, written = [argument], argument
    while waiting:
        for use in waiting.pop().uses:
            user = use.owner.operation
            if user.name == SHARD:
                waiting.append(user.results[0])
            elif user.name in (READ, WRITE) and user.block == body and use.operand_number == 0:
                first = 1 if user.name == READ else 2
                part = user.results[0] if user.name == READ else user.operands[1]
                index, counter = user.operands[first], body.arguments[counted.counter]
                positions.add(_position(index, counter, counted.trip_count) if shape_of(part)[0] == 1 else None)
                written = user.results[0] if user.name == WRITE else written
            elif user.name != "stablehlo.return":
                return None
    if returned != written or len(positions) != 1:
        return None
    position = positions.pop()
    if position is None or {position.at(trip) for trip in range(shape[0])} != {*range(shape[0])}:
        return None
    return position


def _position(index: ir.Value, counter: ir.Value, trips: int) -> Position | None:
    """An index as a position; None for one that is not known to count up or down with the counter."""
    index = look_through(index, (SHARD,))
    if index == counter:
        return Position(1, 0)
    if (number := known_integer(index)) is not None:
        return Position(0, number)
    op = defining_op(index)
    if op is None:
        return None
    if op.name == "stablehlo.select":  # JAX adds the size to indices below 0
        holds = _comparison(op.operands[0], counter, trips)
        return None if holds is None else _position(op.operands[1 if holds else 2], counter, trips)
    if op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (_position(operand, counter, trips) for operand in op.operands)
    if left is None or right is None:
        return None
    sign = 1 if op.name == "stablehlo.add" else -1
    return Position(left.sign + sign * right.sign, left.offset + sign * right.offset)


def _comparison(value: ir.Value, counter: ir.Value, trips: int) -> bool | None:
    """Whether a comparison of two positions holds, if it has one answer in all trips."""
    op = defining_op(look_through(value, (SHARD,)))
    if op is None or op.name != "stablehlo.compare":
        return None
    left, right = (_position(operand, counter, trips) for operand in op.operands)
    if left is None or right is None:
        return None
    holds = COMPARISONS[comparison_direction(op)]
    answers = {bool(holds(left.at(trip), right.at(trip))) for trip in range(trips)}
    return answers.pop() if len(answers) == 1 else None
