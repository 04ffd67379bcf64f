"""From a step and its arguments to a pipeline: traced, decided, cut into fragments, ordered by a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from meshbridge import partitioning, pipeline
from meshbridge.dialect.donation import is_donated
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import MeshError, entries, function_type, ir, main_function
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipelines import schedules
from meshbridge.pipelines.fragments import Fragment, fragments_of
from meshbridge.pipelines.loop import MARK, MicrobatchLoop, find_loop
from meshbridge.pipelines.named_computations import read_named_computations
from meshbridge.pipelines.placement import place
from meshbridge.pipelines.plan import CallPlan, donate, plan
from meshbridge.pipelines.scan_split import split_scans
from meshbridge.pipelines.schedules import Schedule
from meshbridge.pipelines.stacks import Stacks
from meshbridge.pipelines.terms import keep_terms
from meshbridge.pipelines.topology import target_of_stage
from meshbridge.read.formats import Program, copy_module


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

    @property
    def mesh_size(self) -> int:
        """The number of devices of each group."""
        return int(mesh_or_single(self.plan.fragments[0].module).size)

    def devices_of(self, group: int, devices: Sequence[Any]) -> Sequence[Any]:
        """The devices of a group. Raises MeshError if there are fewer than all groups need, or one is named twice."""
        size, groups = self.mesh_size, self.plan.schedule.groups
        if len(devices) < size * groups:
            raise MeshError(
                f"error: {groups} stages on meshes of {size} devices need {size * groups} devices, there are {len(devices)}"
                "\n  hint: shard the step on a mesh of as many devices as one stage has"
            )
        if len(set(devices)) < len(devices):
            twice = next(device for number, device in enumerate(devices) if device in devices[:number])
            raise MeshError(f"error: the meshes of stages overlap: device {twice.id} is named twice")
        return devices[size * group : size * (group + 1)]

    def partitioned(self, fragment: Fragment, emit: pipeline.Emit) -> Program:
        """A copy of a fragment, partitioned on the mesh of its stage, in that form. Raises MeshError."""
        module = copy_module(fragment.module)
        partitioning.partition_module(module, replace(self.options, emit=emit))
        return Program(module, self.source.format)


@dataclass(frozen=True, eq=False)
class DecidedStep:
    """A step whose shardings are decided, on the mesh of one of so many `stages`, and which is not cut yet."""

    source: Program
    annotated: ir.Module
    "Decided, with scans over layers cut."
    stacks: Stacks
    options: pipeline.Options
    whole: CompileTarget
    stages: int
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

    def cut(self, chunks: int, *, split_weights: bool) -> CutStep:
        """The step, cut into `chunks`. Raises MeshError as `place` does."""
        loop = self._own_loop()
        with loop.module.context:
            placement = place(loop, self.stages, chunks, split_weights=split_weights)
            return CutStep(self, tuple(fragments_of(placement, keep_terms(placement))))


@dataclass(frozen=True, eq=False)
class CutStep:
    """A step that is cut into fragments, for schedules of as many chunks."""

    step: DecidedStep
    fragments: tuple[Fragment, ...]

    def under(self, schedule: Schedule) -> StagedPipeline:
        """The pipeline under a schedule. Pipelines of one cut share its fragments."""
        step = self.step
        planned = plan(self.fragments, schedule)
        with step.annotated.context:
            donate(planned, step.donated)
        return StagedPipeline(step.source, planned, step.stacks, step.options, step.whole, step.donated)


def decide(program: Program, options: pipeline.Options, stages: int) -> DecidedStep:
    """Decides the shardings of a program, on the mesh of one of so many `stages`, which are groups of devices: equal parts of the
    options' target, if that has a topology. Does not change the program. Raises MeshError."""
    if stages < 1:
        raise MeshError(f"error: stages is {stages}, expected at least 1")
    own = replace(options, target=target_of_stage(options.target, stages))
    source = replace(program, module=copy_module(program.module))
    read_named_computations(source.module)
    module, stacks = legal(source.module, stages)
    donated = frozenset(number for number, entry in enumerate(entries(main_function(module), "arg_attrs")) if is_donated(entry))
    partitioning.partition_module(module, replace(own, emit="annotated"))
    return DecidedStep(source, module, stacks, own, options.target, stages, donated)


def legal(source: ir.Module, stages: int) -> tuple[ir.Module, Stacks]:
    """A copy of a program with calls inlined, and scans over layers cut for so many stages if they have to be.

    Raises MeshError."""
    module = copy_module(source)
    with module.context, ir.Location.unknown():
        pipeline.run(pipeline.build(pipeline.Options(emit="mesh")).until("legal").passes, module, verified="none")
    kind = function_type(main_function(module))
    return split_scans(module, stages) or (module, Stacks.none(len(kind.inputs), len(kind.results)))


def undecided_loop(program: Program, stages: int) -> MicrobatchLoop:
    """The loop of microbatches of a program for so many stages, whose shardings are not decided. Raises MeshError."""
    source = copy_module(program.module)
    read_named_computations(source)
    module, _ = legal(source, stages)
    with module.context:
        return find_loop(module)


def build(program: Program, options: pipeline.Options, stages: int, schedule: str | Schedule) -> StagedPipeline:
    """Cuts a program with a loop of microbatches, for the mesh of one stage, into a pipeline of that many `stages`, which are
    groups of devices: equal parts of the options' target, if that has a topology. Does not change the program.

    Raises MeshError for a program whose stages are not marked, or not in order, and for a schedule that does not fit them.
    """
    step = decide(program, options, stages)
    ordered = _schedule(schedule, stages, step.loop)
    return step.cut(ordered.chunks, split_weights=ordered.splits_weights).under(ordered)


def _schedule(schedule: str | Schedule, stages: int, loop: MicrobatchLoop) -> Schedule:
    """The schedule of that name; an interleaved one has all stages that are marked as chunks."""
    microbatches = loop.microbatches
    if isinstance(schedule, str):
        chunks = loop.marked(stages) if schedule == "interleaved" else stages
        if schedule == "interleaved" and not loop.names:
            raise MeshError(f"error: the schedule 'interleaved' has the stages that are marked, found none\n  hint: {MARK}")
        return schedules.named(schedule, stages, chunks, microbatches)
    if (schedule.groups, schedule.microbatches) != (stages, microbatches):
        raise MeshError(
            f"error: the schedule {schedule.name!r} is for {schedule.groups} stages and {schedule.microbatches} microbatches, "
            f"expected {stages} and {microbatches}"
        )
    return schedule
