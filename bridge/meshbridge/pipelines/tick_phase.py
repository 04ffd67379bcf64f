"""A phase that is a scan over layers: a computation that is manual along stages, with a loop of ticks.

In each tick a stage takes a microbatch through its layers, keeps what later phases read of it, and sends to the next stage what
passes from layer to layer. Where there is no microbatch, 0 is added to sums, and what is kept goes to a slot that nothing reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.digits import axis_digits
from meshbridge.ir.groups import Groups, shifted
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import look_through
from meshbridge.pipelines.layer_chunk import layer_chunk
from meshbridge.pipelines.leading_split import part_type
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.phase_writer import PhaseWriter, SkewedProgram, begin_loop, end_loop
from meshbridge.pipelines.stage_axis import STAGES, ManualComputation


@dataclass(frozen=True)
class Ticks:
    """A loop in which microbatches pass the layers of all stages."""

    location: ir.Location
    is_forward: bool
    "Whether they pass the stages from the first one to the last one."


@dataclass(eq=False)
class TickPhase:
    """The phase of that number, in writing."""

    program: SkewedProgram
    phase: int

    def __post_init__(self) -> None:
        phases, stages = self.program.phases, self.program.stages
        self.scan = phases.family.scans[self.phase // 2]
        self.ticks = Ticks(self.scan.op.location, not self.scan.descends)
        self.passing = self.scan.carried()
        self.carried, self.kept = phases.carried_in[self.phase], phases.kept.get(self.phase, [])
        self.manual = ManualComputation.begin(self.program.mesh, Builder(self.scan.op.location, self.program.at.ip))
        self.outside = self.manual.builder
        self.stage = self.manual.stage()
        last = self.outside.scalar(stages - 1)
        self.position = self.stage if self.ticks.is_forward else self.outside.subtract(last, self.stage)

    def write(self) -> Ticks:
        """Writes the computation; what it computes is final, or kept, in the program."""
        initial = [self.outside.scalar(0), *self._nothing_received(), *self._totals(), *self._empty()]
        loop, at = begin_loop(self.outside, initial, self.program.microbatches + self.program.stages - 1)
        end_loop(loop, at, self._tick(loop.regions[1].blocks[0].arguments, at))
        self._end(list(loop.results)[1 + len(self.passing) :])
        return self.ticks

    def _nothing_received(self) -> list[ir.Value]:
        return [self.outside.splat(self.scan.op.operands[number].type, 0) for number in self.passing]

    def _totals(self) -> list[ir.Value]:
        """The parts of the carried values before the first microbatch."""
        program = self.program
        writer = PhaseWriter(program, self.outside, self.position, self.manual.operand, self.stage)
        return [
            self.manual.operand(program.final[number], 0)
            if number in program.final
            else writer.get(program.phases.loop.operands[number], part=True)
            for number in self.carried
        ]

    def _empty(self) -> list[ir.Value]:
        """Room for what is kept of all microbatches, and of one that is none."""
        rooms = []
        for value in self.kept:
            is_part = value in self.program.phases.split
            shape = list(part_type(value, self.program.phases.division, 0).shape) if is_part else shape_of(value)
            rooms.append(self.outside.splat(tensor([self.program.microbatches + 1, *shape], element_of(value)), 0))
        return rooms

    def _tick(self, arguments: Sequence[ir.Value], at: Builder) -> list[ir.Value]:
        """Writes a tick; returns what is carried on to the next one."""
        phases, microbatches = self.program.phases, self.program.microbatches
        tick, *rest = arguments
        received, rest = rest[: len(self.passing)], rest[len(self.passing) :]
        totals, rooms = rest[: len(self.carried)], rest[len(self.carried) :]
        own = at.subtract(tick, self.position)
        valid = at.within(own, microbatches)
        inside = at.value("clamp", own.type, [at.scalar(0), own, at.scalar(microbatches - 1)])
        writer = PhaseWriter(self.program, at, inside, self.manual.operand, self.stage, valid=valid)
        writer.part.update(zip((phases.body.arguments[number] for number in self.carried), totals, strict=True))
        writer.sums = {phases.origin(look_through(phases.yielded[number], (SHARD,))): number for number in self.carried}
        for op in phases.in_phase[self.phase]:
            if op == self.scan.op:
                self._layers(writer, dict(zip(self.passing, received, strict=True)))
            else:
                writer.compute(op)
        sent = [self._sent(writer.whole[self.scan.op.results[number]], at) for number in self.passing]
        totals = [writer.carry_on(number, before, self.phase) for number, before in zip(self.carried, totals, strict=True)]
        slot = at.select(valid, own, microbatches)
        for index, value in enumerate(self.kept):
            new = writer.part[value] if value in phases.split else writer.whole[value]
            rooms[index] = at.dynamic_update(rooms[index], at.reshape(new, [1, *shape_of(new)]), 0, slot)
        return [*sent, *totals, *rooms]

    def _layers(self, writer: PhaseWriter, received: dict[int, ir.Value]) -> None:
        """Takes a microbatch through the layers of a stage."""
        at, scan, op = writer.at, self.scan, self.scan.op
        first = at.compare("EQ", self.position, 0)
        operands = []
        for number, operand in enumerate(op.operands):
            if number == scan.counted.counter:
                operands.append(at.splat(operand.type, 0))
            elif number in scan.stacks:
                operands.append(writer.get(operand, part=True))
            elif number in received:
                operands.append(at.select(first, writer.get(operand), received[number]))
            else:
                operands.append(writer.get(operand))
        chunk = layer_chunk(scan, self.program.phases.division, operands, self.position, writer.get, at)
        for number, result in enumerate(op.results):
            (writer.part if number in scan.stacks else writer.whole)[result] = chunk.results[number]

    def _sent(self, value: ir.Value, at: Builder) -> ir.Value:
        """What a stage receives if each one sends `value` to the next one."""
        steps = shifted(self.program.stages, 1 if self.ticks.is_forward else -1)
        attrs = Groups().permute(self.program.mesh, axis_digits(self.program.mesh, (STAGES,)), steps)
        return at.value("collective_permute", value.type, [value], dict(attrs))

    def _end(self, results: Sequence[ir.Value]) -> None:
        """Ends the computation. Of what passes stages, the values of the last one are kept."""
        program = self.program
        ends: list[tuple[ir.Value, int | None]] = [(total, 0) for total in results[: len(self.carried)]]
        for value, room in zip(self.kept, results[len(self.carried) :], strict=True):
            is_part = value in program.phases.split
            ends.append((room, 1) if is_part else (self.outside.reshape(room, [1, *shape_of(room)]), 0))
        outer = self.manual.end(ends)
        program.final.update(zip(self.carried, outer, strict=False))
        last = program.stages - 1 if self.ticks.is_forward else 0
        for value, whole in zip(self.kept, outer[len(self.carried) :], strict=True):
            if value in program.phases.split:
                program.kept[value] = whole
            else:
                program.kept[value] = program.at.reshape(program.at.slice(whole, 0, last, 1), shape_of(whole)[1:])
