"""Writes the ops of a phase of a skewed loop of microbatches, for one microbatch.

A value is computed in the phase, or cheap enough to be computed again, or comes from outside of the phase: as it is for all
microbatches, or from what an earlier phase keeps of each one. Where stages compute, each has its part of what is in parts along
layers, and all have a copy of other values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meshbridge.analysis.known_values import Splat, known
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.pipelines.leading_split import on_part, part_type
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.phases import Phases
from meshbridge.pipelines.reads import clone_reading, external_operands
from meshbridge.pipelines.stage_axis import STAGES, along_stages

Outer = Callable[[ir.Value, int | None], ir.Value]
"""A value from outside of a phase, in it: all of it, or the part of a stage along that dimension."""


@dataclass(eq=False)
class SkewedProgram:
    """A program whose loop of microbatches becomes phases, on a mesh whose first axis has the stages."""

    phases: Phases
    mesh: Mesh
    kept: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "By value, its values of all microbatches, along a new first dimension."
    final: dict[int, ir.Value] = field(default_factory=dict)
    "By number, the carried values after the last microbatch."
    before: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "What is fixed for all microbatches, computed before the loop."

    def __post_init__(self) -> None:
        self.stages = self.mesh.shape[STAGES]
        self.microbatches = self.phases.counted.trip_count
        self.at = Builder.before(self.phases.loop)

    def entering(self, number: int) -> ir.Value:
        """A carried value before the next phase that carries it."""
        return self.final[number] if number in self.final else self.phases.loop.operands[number]

    def fixed(self, value: ir.Value) -> ir.Value:
        """A value that is the same for all microbatches, before the loop."""
        value = self.phases.origin(value)
        if self.phases.kind(value) == "outside":
            return value
        if value not in self.before:
            op = op_of(value)
            clone = clone_reading(op, {read: self.fixed(read) for read in external_operands(op)}, self.at)
            self.before.update(zip(op.results, clone.results, strict=True))
        return self.before[value]


@dataclass(eq=False)
class PhaseWriter:
    """Writes the ops of a phase for one microbatch."""

    program: SkewedProgram
    at: Builder
    microbatch: ir.Value
    outer: Outer
    stage: ir.Value | None = None
    "The number of the stage, where each one computes with its own layers."
    whole: dict[ir.Value, ir.Value] = field(default_factory=dict)
    part: dict[ir.Value, ir.Value] = field(default_factory=dict)
    "The values of a stage's layers."
    valid: ir.Value | None = None
    "Whether there is a microbatch."
    sums: dict[ir.Value, int] = field(default_factory=dict)
    "The numbers of the carried values, by the value that is carried on."
    masked: set[int] = field(default_factory=set)
    "Those that are sums, to which nothing is added where there is no microbatch."

    @property
    def on_stages(self) -> bool:
        """Whether each stage computes with its own layers."""
        return self.stage is not None

    def get(self, value: ir.Value, *, part: bool = False) -> ir.Value:
        """A value, or the part of it that a stage has."""
        value = self.program.phases.origin(value)
        part = part and value in self.program.phases.split
        values = self.part if part else self.whole
        if value not in values:
            values[value] = self._get(value, part)
        return values[value]

    def _get(self, value: ir.Value, part: bool) -> ir.Value:
        phases, kind = self.program.phases, self.program.phases.kind(value)
        if kind == "counter":
            counts = phases.counted.values
            element = element_of(value)
            number = self.at.convert(self.microbatch, element)
            number = number if counts.step == 1 else self.at.elementwise("multiply", number, counts.step)
            return self.at.add(number, counts.start)
        if kind == "layers":
            scan = phases.scan_of(op_of(value))
            assert scan is not None, "a result of a scan over layers"
            return self.at.splat(value.type, scan.trips)
        if self.on_stages and kind in ("outside", "repeated"):
            static = known(value) if isinstance(value.type, ir.RankedTensorType) else None
            if isinstance(static, Splat) and not isinstance(element_of(value), ir.ComplexType):
                return self.at.splat(part_type(value, phases.division, 0) if part else value.type, static.number)
        if kind in ("repeated", "counted"):
            if part and not phases.is_on_parts(op_of(value)):
                return self._part_of(self.get(value))
            self._write(op_of(value), part)
            return (self.part if part else self.whole)[value]
        if kind in ("outside", "fixed"):
            return self._outside(value, part)
        all_of_it = self.outer(self.program.kept[value], 1 if part else None)
        shape = shape_of(all_of_it)
        return self.at.reshape(self.at.dynamic_slice(all_of_it, 0, self.microbatch, 1), shape[1:])

    def _part_of(self, whole: ir.Value) -> ir.Value:
        """The part of a stage of what all stages have."""
        assert self.stage is not None, "a phase of stages"
        size = shape_of(whole)[0] // self.program.stages
        return self.at.dynamic_slice(whole, 0, self.at.elementwise("multiply", self.stage, size), size)

    def _outside(self, value: ir.Value, part: bool) -> ir.Value:
        fixed = self.program.fixed(value)
        op = defining_op(fixed)
        if self.on_stages and op is not None and not len(op.operands):  # numbers and shardings
            written: ir.Value = op.clone(ip=self.at.ip).results[0]
            return written
        return self.outer(fixed, 0 if part else None)

    def compute(self, op: ir.Operation) -> None:
        """Writes an op of the phase."""
        self._write(op, self.on_stages)

    def _write(self, op: ir.Operation, part: bool) -> None:
        at = Builder(op.location, self.at.ip)
        if part:
            operands = [self.get(operand, part=True) for operand in op.operands]
            operands = self._masked(op, operands)
            written = on_part(op, operands, self.program.phases.division, 0, at)
            self.part.update(zip(op.results, written.results, strict=True))
            return
        if op.name == SHARD:
            self.whole[op.results[0]] = self._annotated(op, self.get(op.operands[0]))
            return
        written = clone_reading(op, {value: self.get(value) for value in external_operands(op)}, at)
        self.whole.update(zip(op.results, written.results, strict=True))

    def _masked(self, op: ir.Operation, operands: list[ir.Value]) -> list[ir.Value]:
        """The operands of an op on parts. To a sum that is carried on, 0 is added where there is no microbatch."""
        number = self.sums.get(op.results[0])
        if number is None or self.valid is None or op.name != "stablehlo.add":
            return operands
        argument = self.program.phases.body.arguments[number]
        is_total = [self.program.phases.origin(look_through(operand, (SHARD,))) == argument for operand in op.operands]
        if sum(is_total) != 1:
            return operands
        self.masked.add(number)
        return [own if total else self.at.select(self.valid, own, 0) for own, total in zip(operands, is_total, strict=True)]

    def carry_on(self, number: int, before: ir.Value, phase: int) -> ir.Value:
        """The value that is carried on, which stays as it is where there is no microbatch."""
        phases = self.program.phases
        values = [self.get(value, part=self.on_stages) for value in phases.carried_on(number, phase)]
        if number not in phases.spread:
            return values[0] if self.valid is None or number in self.masked else self.at.select(self.valid, values[0], before)
        total = before
        for value in values:
            added = self.at.convert(value, element_of(total))
            total = self.at.add(total, added if self.valid is None else self.at.select(self.valid, added, 0))
        for op in reversed(phases.spread[number].annotations):
            total = self._annotated(op, total)
        return total

    def _annotated(self, op: ir.Operation, value: ir.Value) -> ir.Value:
        """A value with the annotation of another one."""
        written = clone_reading(op, {op.operands[0]: value, op.operands[1]: self.get(op.operands[1])}, self.at)
        if op.results[0] in self.program.phases.split and not self.on_stages:
            written.operands[1] = along_stages(written.operands[1], Builder.before(written))
        written.results[0].set_type(value.type)
        annotated: ir.Value = written.results[0]
        return annotated


def begin_loop(at: Builder, initial: list[ir.Value], trips: int) -> tuple[ir.Operation, Builder]:
    """A loop of so many trips that carries `initial`, of which the first is its counter; and a builder in its body."""
    types = [value.type for value in initial]
    loop = at.op("while", types, initial, {}, 2)
    condition, body = (region.blocks.append(*types) for region in loop.regions)
    test = Builder(at.loc, ir.InsertionPoint(condition))
    test.op("return", [], [test.compare("LT", condition.arguments[0], trips)])
    return loop, Builder(at.loc, ir.InsertionPoint(body))


def end_loop(loop: ir.Operation, inside: Builder, values: list[ir.Value]) -> None:
    """Ends the body of a loop that carries on `values`."""
    counter = loop.regions[1].blocks[0].arguments[0]
    inside.op("return", [], [inside.add(counter, inside.scalar(1)), *values])
