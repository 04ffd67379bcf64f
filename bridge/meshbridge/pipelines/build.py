"""From a step and its arguments to a pipeline: traced, decided, cut into fragments, ordered by a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from meshbridge import partitioning, pipeline
from meshbridge.dialect.donation import is_donated
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import MeshError, OpError, entries, function_type, ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipelines import schedules
from meshbridge.pipelines.boundaries import Boundaries
from meshbridge.pipelines.fragment_reports import FragmentReports
from meshbridge.pipelines.fragments import Fragment, fragments_of
from meshbridge.pipelines.layer_sequence import LayerSequence, find_sequence
from meshbridge.pipelines.loop import MicrobatchLoop, find_loop, refuse_repeated
from meshbridge.pipelines.named_computations import read_named_computations
from meshbridge.pipelines.placement import place
from meshbridge.pipelines.plan import CallPlan, donate, plan
from meshbridge.pipelines.positions import flow_of, positions_of
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.scan_split import split_scans
from meshbridge.pipelines.schedules import Schedule
from meshbridge.pipelines.segment_prices import Price, division_to_price, joined, prices_of, prices_of_layers
from meshbridge.pipelines.sites import Chunks
from meshbridge.pipelines.stacks import Division, Stacks
from meshbridge.pipelines.terms import keep_terms
from meshbridge.pipelines.topology import devices_of_stages, target_of_stage, transfer_time
from meshbridge.read.formats import Program, copy_module

TURNS = (1, 2, 4)
"""The numbers of chunks of a stage to choose among where boundaries do not say how many there are."""

INTERLEAVED = 2
"""Chunks of a stage under an interleaved schedule, where boundaries do not say how many there are."""


@dataclass(frozen=True, eq=False)
class StagedPipeline:
    """A step as a pipeline. `source` is the program as given, on the mesh of one stage, with boundaries of stages."""

    source: Program
    plan: CallPlan
    stacks: Stacks
    "The plan's arguments and results as parts of the step's."
    options: pipeline.Options
    "How fragments are partitioned, each on the devices of its stage."
    whole: CompileTarget
    "The devices of all stages."
    donated: frozenset[int]
    reports: FragmentReports
    "Of fragments that have been predicted."

    @property
    def mesh_size(self) -> int:
        """The number of devices of each group."""
        return int(mesh_or_single(self.plan.fragments[0].module).size)

    def devices_of(self, group: int, devices: Sequence[Any]) -> Sequence[Any]:
        """The devices of a group. Raises MeshError if there are fewer than all groups need, or one is named twice."""
        size = self.mesh_size
        return devices_of_stages(devices, size, self.plan.schedule.groups)[size * group : size * (group + 1)]

    def partitioned(self, fragment: Fragment, emit: pipeline.Emit) -> Program:
        """A copy of a fragment, partitioned on the mesh of its stage, in that form. Raises MeshError."""
        module = copy_module(fragment.module)
        partitioning.partition_module(module, replace(self.options, emit=emit))
        return Program(module, self.source.format)


@dataclass(frozen=True, eq=False)
class DecidedStep:
    """A step whose shardings are decided, on the mesh of one stage, and which is not cut yet."""

    annotated: ir.Module
    "With scans over layers cut."
    stacks: Stacks
    donated: frozenset[int]
    "The arguments of the program that it may overwrite."

    @cached_property
    def loop(self) -> MicrobatchLoop:
        """The loop of microbatches, to read. Raises MeshError as `find_loop` does."""
        return self._own_loop()

    def _own_loop(self) -> MicrobatchLoop:
        module = copy_module(self.annotated)
        with module.context:
            return find_loop(module)

    def points(self, chunks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The points at which one of so many chunks may begin, and those at which they begin by default. Raises MeshError as
        `place` does."""
        with self.annotated.context:
            flow = flow_of(LoopProgram(self.loop), Chunks(chunks, chunks))
            return flow.points, flow.even

    def cut(
        self, groups: int, chunks: int, begins: tuple[int, ...] | None = None, *, split_weights: bool
    ) -> tuple[Fragment, ...]:
        """The fragments of the step, cut into `chunks` for so many groups of devices, which begin at those points. Raises
        MeshError as `place` does."""
        loop = self._own_loop()
        with loop.module.context:
            placement = place(loop, groups, chunks, begins, split_weights=split_weights)
            return tuple(fragments_of(placement, keep_terms(placement)))


@dataclass(eq=False)
class PreparedStep:
    """A step for so many `stages`, with calls inlined, whose shardings are not decided yet: they are for each cut of scans over
    layers, which depends on the schedule."""

    source: Program
    legal: ir.Module
    options: pipeline.Options
    "With the devices of one stage."
    whole: CompileTarget
    "The devices of all stages."
    stages: int
    reports: FragmentReports
    _layers: dict[int, LayerSequence | None] = field(default_factory=dict)
    _decided: dict[Division | None, DecidedStep] = field(default_factory=dict)
    _fragments: dict[tuple[Any, ...], tuple[Fragment, ...]] = field(default_factory=dict)
    _prices: dict[tuple[Any, ...], list[Price]] = field(default_factory=dict)

    def layers(self, chunks: int) -> LayerSequence | None:
        """The layers of scans that so many chunks cut; None if there are none."""
        if chunks not in self._layers:
            self._layers[chunks] = find_sequence(main_function(self.legal), self.legal, chunks)
        return self._layers[chunks]

    def undecided_loop(self, chunks: int) -> MicrobatchLoop:
        """The loop of microbatches for so many chunks, to read, whose shardings are not decided. Raises MeshError."""
        layers = self.layers(chunks)
        module = self.legal if layers is None else split_scans(self.legal, layers, layers.even(chunks))[0]
        module = copy_module(module)
        with module.context:
            return find_loop(module)

    def chunk_counts(self) -> list[int]:
        """The numbers of chunks that the step may be cut into, the number of stages first. Raises MeshError if there are none."""
        stages, layers = self.stages, self.layers(self.stages)
        loop = self.undecided_loop(stages)
        if layers is not None:
            return [turns * stages for turns in TURNS if turns * stages <= len(layers.points) + 1]
        if not loop.names:
            return [turns * stages for turns in TURNS]
        marked = loop.marked(stages)
        return [count for count in range(stages, marked + 1, stages) if marked % count == 0]

    def check(self, chunks: int) -> None:
        """Raises MeshError for a number of chunks that the step cannot be cut into, wherever they begin."""
        loop = self.undecided_loop(chunks)
        with loop.module.context:
            positions_of(LoopProgram(loop), Chunks(self.stages, chunks))

    def under(self, schedule: Schedule) -> StagedPipeline:
        """The pipeline under a schedule. Pipelines of one cut share its fragments. Raises MeshError for a step that cannot be cut
        so."""
        layers = self.layers(schedule.chunks)
        if layers is None:
            division, begins = None, self._begins(schedule)
        else:
            division, begins = self._division(layers, schedule), None
        step = self.decided(division)
        key = division, schedule.chunks, begins, schedule.splits_weights
        if key not in self._fragments:
            self._fragments[key] = step.cut(self.stages, schedule.chunks, begins, split_weights=schedule.splits_weights)
        planned = plan(self._fragments[key], schedule)
        with step.annotated.context:
            donate(planned, step.donated)
        return StagedPipeline(self.source, planned, step.stacks, self.options, self.whole, step.donated, self.reports)

    def decided(self, division: Division | None) -> DecidedStep:
        """The step with shardings, and with its scans over layers divided so among chunks. Raises MeshError."""
        if division not in self._decided:
            module, stacks = self._split(division)
            function = main_function(module)
            donated = frozenset(number for number, entry in enumerate(entries(function, "arg_attrs")) if is_donated(entry))
            partitioning.partition_module(module, replace(self.options, emit="annotated"))
            self._decided[division] = DecidedStep(module, stacks, donated)
        return self._decided[division]

    def _split(self, division: Division | None) -> tuple[ir.Module, Stacks]:
        if division is not None and (layers := self.layers(division.parts)) is not None:
            return split_scans(self.legal, layers, division)
        module = copy_module(self.legal)
        kind = function_type(main_function(module))
        return module, Stacks.none(len(kind.inputs), len(kind.results))

    @property
    def predicts(self) -> bool:
        """Whether the seconds of fragments can be predicted: the machine has a topology."""
        return self.whole.devices is not None

    def _division(self, layers: LayerSequence, schedule: Schedule) -> Division:
        """The layers of each chunk: those of the shortest predicted step, or of equal work without a topology."""
        even, points = layers.even(schedule.chunks), layers.points
        if not self.predicts or len(points) < schedule.chunks:
            return even
        known = division_to_price(even, layers.scans)
        key = known, points, schedule.splits_weights
        if key not in self._prices:
            segments = self._priced(self.decided(known), known.parts, None, split_weights=schedule.splits_weights)
            prices = prices_of_layers(segments, known, layers.scans, merged=not schedule.splits_weights)
            self._prices[key] = joined(prices, points)
        return Division((0, *self._chosen(self._prices[key], points, even.bounds[1:-1], schedule), layers.count))

    def _begins(self, schedule: Schedule) -> tuple[int, ...] | None:
        """The points at which chunks begin: those of the shortest predicted step; None for the default ones, without a topology,
        and for a step that cannot be cut at each point, as where a value passes boundaries of one chunk in another order."""
        step = self.decided(None)
        if not self.predicts:
            return None
        points, default = step.points(schedule.chunks)
        if len(points) < schedule.chunks:
            return None
        key = points, schedule.splits_weights
        if key not in self._prices:
            try:
                self._prices[key] = self._priced(step, len(points) + 1, points, split_weights=schedule.splits_weights)
            except OpError:
                return None
        return self._chosen(self._prices[key], points, default, schedule)

    def _chosen(self, prices: list[Price], points: tuple[int, ...], even: tuple[int, ...], schedule: Schedule) -> tuple[int, ...]:
        """The points at which chunks of the shortest predicted step begin. `prices` are those of the segments between points."""
        begins = tuple(points.index(point) + 1 for point in even)
        return tuple(points[segment - 1] for segment in self._boundaries(prices, schedule).best(begins))

    def _priced(self, step: DecidedStep, segments: int, points: tuple[int, ...] | None, *, split_weights: bool) -> list[Price]:
        fragments = step.cut(segments, segments, points, split_weights=split_weights)
        return prices_of(fragments, segments, self.options, self.reports)

    def _boundaries(self, prices: list[Price], schedule: Schedule) -> Boundaries:
        mesh = mesh_or_single(self.legal)
        memory = min(self.whole.written_limit, self.whole.implied_limit)

        def transfer(size: float) -> float:
            return transfer_time(self.whole, mesh, self.stages, 0, 1, size).seconds if self.stages > 1 else 0.0

        return Boundaries(prices, schedule, transfer, memory)


def prepare(program: Program, options: pipeline.Options, stages: int, reports: FragmentReports | None = None) -> PreparedStep:
    """A program for so many `stages`, which are groups of devices: equal parts of the options' target, if that has a topology.
    Does not change the program. Raises MeshError."""
    if stages < 1:
        raise MeshError(f"error: stages is {stages}, expected at least 1")
    own = replace(options, target=target_of_stage(options.target, stages))
    source = replace(program, module=copy_module(program.module))
    read_named_computations(source.module)
    return PreparedStep(
        source, inlined(source.module), own, options.target, stages, FragmentReports() if reports is None else reports
    )


def inlined(source: ir.Module) -> ir.Module:
    """A copy of a program on the mesh dialect, with calls inlined. Raises MeshError, also for a stage that is entered twice."""
    module = copy_module(source)
    with module.context, ir.Location.unknown():
        pipeline.run(pipeline.build(pipeline.Options(emit="mesh")).until("legal").passes, module, verified="none")
        refuse_repeated(module)
    return module


def build(program: Program, options: pipeline.Options, stages: int, schedule: str | Schedule) -> StagedPipeline:
    """Cuts a program with a loop of microbatches, for the mesh of one stage, into a pipeline of that many `stages`, which are
    groups of devices: equal parts of the options' target, if that has a topology. Does not change the program.

    Raises MeshError for a program whose stages are not marked, or not in order, and for a schedule that does not fit them.
    """
    step = prepare(program, options, stages)
    return step.under(_schedule(schedule, step))


def _schedule(schedule: str | Schedule, step: PreparedStep) -> Schedule:
    """The schedule of that name; an interleaved one has all stages that are marked as chunks, or two for each stage."""
    stages, loop = step.stages, step.undecided_loop(step.stages)
    microbatches = loop.microbatches
    if isinstance(schedule, str):
        is_marked = loop.names and step.layers(stages) is None
        several = loop.marked(stages) if is_marked else INTERLEAVED * stages
        return schedules.named(schedule, stages, several if schedule == "interleaved" else stages, microbatches)
    if (schedule.groups, schedule.microbatches) != (stages, microbatches):
        raise MeshError(
            f"error: the schedule {schedule.name!r} is for {schedule.groups} stages and {schedule.microbatches} microbatches, "
            f"expected {stages} and {microbatches}"
        )
    return schedule
