"""Scans over layers in a loop of microbatches: what they read and write for one layer at a time.

    %1:4 = stablehlo.while(%i = 0, %x = …, %w = %weights, %ys = zeros) {
        %layer = dynamic_slice %w, %i, 0, 0          reads a stack at `i`
        %ys' = dynamic_update_slice %ys, …, %i, 0    writes one at `i`
    }

A backward pass reads and writes at `L - 1 - i`. Scans that read or write the same stacks are one family: an encoder is one, a
decoder another one.
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
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.mlir import COMPARISONS, OpError, ancestor_in, comparison_direction, ir, terminator_operands, walk
from meshbridge.ir.uses import LOOK_THROUGH, defining_op, look_through, unchanged_numbers
from meshbridge.pipelines.loop import SHARD, WHILE
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.pipelines.reads import external_operands
from meshbridge.pipelines.stacks import Division

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
class Family:
    """Scans over the same layers, in program order: the first one is forward, others forward or backward."""

    scans: tuple[LayerScan, ...]
    work: float

    @property
    def first(self) -> LayerScan:
        """The first scan."""
        return self.scans[0]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.first.trips

    @property
    def is_ordered(self) -> bool:
        """Whether each of its scans passes all its stacks in one order."""
        return all(len({position.sign for position in scan.stacks.values()}) == 1 or scan.trips == 1 for scan in self.scans)

    def is_forward(self, scan: LayerScan) -> bool:
        """Whether a scan passes the layers as the first one does."""
        return scan.descends == self.first.descends

    @cached_property
    def name(self) -> str:
        """The name of the boundary in its scans; "" if there is none."""
        return next((marker.name for scan in self.scans for _, marker in scan.markers), "")


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """A program's loop of microbatches, its work, and its families of scans over layers, in program order."""

    loop: ir.Operation
    work: float
    families: tuple[Family, ...]

    @property
    def body(self) -> ir.Block:
        """What each microbatch computes."""
        block: ir.Block = self.loop.regions[1].blocks[0]
        return block

    def reads_parameters(self, family: Family) -> bool:
        """Whether a family has a stack of floating-point numbers that is the same for each microbatch, and no constant."""
        stacks = (value for scan in family.scans for value in _shared_stacks(scan))
        return any(value not in self._varying for value in stacks)

    @cached_property
    def _varying(self) -> set[ir.Value]:
        """The values of the body that each microbatch has of its own."""
        unchanged = unchanged_numbers(self.loop)
        varying: set[ir.Value] = {value for number, value in enumerate(self.body.arguments) if number not in unchanged}
        for view in self.body.operations:
            if not varying.isdisjoint(external_operands(view.operation)):
                varying.update(view.operation.results)
        return varying


def find_layers(main: ir.Operation, module: ir.Module) -> LayerLoop | None:
    """The scans over layers of a program, whose calls are inlined. None if it has no loop of microbatches."""
    loop = _loop(main, module)
    if loop is None:
        return None
    body = loop.regions[1].blocks[0]
    scans = list(_scans(body))
    work = _work(module, body, [scan.op for scan in scans])
    families = [Family(own, sum(work[scan.op.results[0]] for scan in own)) for own in _families(scans)]
    return LayerLoop(loop, work[None], tuple(families))


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


def _families(scans: Sequence[LayerScan]) -> Iterator[tuple[LayerScan, ...]]:
    """The scans by what they share: those with the same trip count that share stacks are together."""
    remaining = list(scans)
    while remaining:
        family, stacks = [remaining.pop(0)], set[ir.Value]()
        for scan in family:
            stacks.update(_shared_stacks(scan))
            more = [each for each in remaining if each.trips == scan.trips and not stacks.isdisjoint(_shared_stacks(each))]
            remaining = [each for each in remaining if each not in more]
            family += more
        yield tuple(scan for scan in scans if scan in family)


def _shared_stacks(scan: LayerScan) -> Iterator[ir.Value]:
    """The stacks by which scans are over the same layers: kernels, and what a forward pass leaves to a backward pass. Numbers of
    layers, keys, and constants may be the same for other layers."""
    for number in scan.stacks:
        value = look_through(scan.op.operands[number], (SHARD,))
        if isinstance(element_of(value), ir.FloatType):
            yield scan.op.results[number]
            if not _is_constant(value):
                yield value


def _is_constant(value: ir.Value) -> bool:
    """Whether no argument is among what a value is computed from, as far as `LOOK_THROUGH` ops tell."""
    waiting, seen = [value], set[ir.Value]()
    while waiting and len(seen) < LOOK_THROUGH:
        each = _before_loop(waiting.pop())
        op = defining_op(each)
        if op is None:
            return False
        seen.add(each)
        waiting += [operand for operand in op.operands if operand not in seen]
    return not waiting


def _before_loop(value: ir.Value) -> ir.Value:
    """What a loop carries unchanged, as it is before the loop; any other value itself."""
    if not isinstance(value.owner, ir.Block) or value.owner.owner.name != WHILE:
        return value
    loop, number = value.owner.owner.operation, ir.BlockArgument(value).arg_number
    return loop.operands[number] if number in unchanged_numbers(loop) else value


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
