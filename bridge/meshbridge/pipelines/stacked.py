"""A pipeline as one SPMD program: all stages run at the same time, each on another microbatch, which permutes pass on.

The program's mesh is that of one stage with an axis of stages in front, along which stacks of layers are sharded. It is
partitioned and compiled like any other program. Its layers are under one scan, so that all stages run the same ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshbridge import partitioning, pipeline
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MANUAL, MeshError, OpError, find, ir, main_function, walk
from meshbridge.ir.sharding import Mesh
from meshbridge.pipelines.build import inlined
from meshbridge.pipelines.layer_scans import Family, LayerLoop, find_layers
from meshbridge.pipelines.loop import SHARD, find_loop, refuse_effects
from meshbridge.pipelines.marker import marker_of
from meshbridge.pipelines.named_computations import read_named_computations
from meshbridge.pipelines.phases import Phases
from meshbridge.pipelines.schedules import STACKED
from meshbridge.pipelines.skewed_loop import skew
from meshbridge.pipelines.stack_divisions import check_shardings, divisions_of_stacks
from meshbridge.pipelines.stacks import Division
from meshbridge.pipelines.stage_axis import add_stage_axis, along_stages, open_along_stages
from meshbridge.pipelines.tick_phase import Ticks
from meshbridge.pipelines.topology import devices_of_stages
from meshbridge.read.formats import Program, copy_module

OTHERS = "choose another schedule, such as '1f1b'"


@dataclass(frozen=True, eq=False)
class StackedPipeline:
    """A step as a pipeline in one program. `source` is the program as given, on the mesh of one stage."""

    source: Program
    module: ir.Module
    "The same on the mesh of all stages, before it is partitioned."
    ticks: tuple[Ticks, ...]
    "Its loops in which microbatches pass the stages."
    options: pipeline.Options
    stages: int
    microbatches: int

    @property
    def mesh_size(self) -> int:
        """The number of devices of each stage."""
        return int(mesh_or_single(self.module).size) // self.stages

    def devices(self, devices: Sequence[Any]) -> Sequence[Any]:
        """The devices of all stages. Raises MeshError if there are fewer than stages need, or one is named twice."""
        return devices_of_stages(devices, self.mesh_size, self.stages)

    def partitioned(self, emit: pipeline.Emit) -> Program:
        """A copy of the program, partitioned on the mesh of all stages, in that form. Raises MeshError."""
        module = copy_module(self.module)
        partitioning.partition_module(module, replace(self.options, emit=emit))
        return Program(module, self.source.format)


def build_stacked(program: Program, options: pipeline.Options, stages: int) -> StackedPipeline:
    """The pipeline of a program with a loop of microbatches, for the mesh of one stage, on so many `stages`: equal parts of the
    options' target. Does not change the program.

    Raises MeshError for a program whose layers are not under one scan, or that the stages do not divide."""
    if stages < 2:
        raise MeshError(f"error: stages is {stages}, expected at least 2 for the schedule '{STACKED}'")
    source = replace(program, module=copy_module(program.module))
    read_named_computations(source.module)
    module = inlined(source.module)
    with module.context, ir.Location.unknown():
        mesh = add_stage_axis(module, stages)
        phases = _phases(module, stages)
        ticks = _stack(module, phases, mesh)
    return StackedPipeline(source, module, ticks, options, stages, phases.counted.trip_count)


def _phases(module: ir.Module, stages: int) -> Phases:
    """What runs in the loop of microbatches, and when. Raises MeshError for a program that this form cannot have."""
    main = main_function(module)
    layers = find_layers(main, module)
    family = _family(main, module, layers)
    assert layers is not None, "a family is in a loop"
    refuse_effects(layers.loop.regions[1].blocks[0])
    for op in find(module.operation, [MANUAL]):
        raise OpError(op, f"is on the mesh of one stage, and the schedule '{STACKED}' has one program on that of all", OTHERS)
    division = _division(family, stages)
    for scan in family.scans:
        scan.runs(division)  # refuses stacks in several orders
    split = divisions_of_stacks(main, layers, {family: division})
    check_shardings(module, family, division, split)
    return Phases(layers, family, division, split)


def _division(family: Family, stages: int) -> Division:
    """Equally many layers for each stage. Raises OpError if there are none."""
    if family.layers % stages:
        message = f"runs {family.layers} layers, which {stages} stages of equally many layers do not divide"
        raise OpError(family.first.op, message, f"choose a number of stages that divides {family.layers}, or {OTHERS}")
    return Division.even(family.layers, stages)


def _family(main: ir.Operation, module: ir.Module, layers: LayerLoop | None) -> Family:
    """The scans over the layers of all stages. Raises MeshError if there are none, and for boundaries beside them."""
    hint = f"scan all layers with one jax.lax.scan, or {OTHERS}"
    for op in walk(main):
        if layers is not None and op.block == layers.body and (marker := marker_of(op)) is not None:
            alike = f"the schedule '{STACKED}' has stages that run the same ops, and this boundary is in no scan over layers"
            raise OpError(op, f"of stage {marker.name!r}: {alike}", hint)
    families = () if layers is None else layers.families
    reading = [each for each in families if layers is not None and layers.reads_parameters(each)]
    if not families:
        loop = find_loop(copy_module(module)).op
        raise OpError(loop, f"has no scan over layers, which the schedule '{STACKED}' divides", hint)
    return max(reading or families, key=lambda family: family.work)


def _stack(module: ir.Module, phases: Phases, mesh: Mesh) -> tuple[Ticks, ...]:
    """Skews the loop of microbatches, and shards stacks of layers along stages outside of it."""
    main = main_function(module)
    block = main.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    annotated = [op for op in ops if op.name == SHARD and op.operands[0] in phases.split]
    stacks = [argument for argument in block.arguments if argument in phases.split]
    ticks = skew(phases, mesh)
    known = {op.operands[0] for op in annotated}
    for op in annotated:
        op.operands[1] = along_stages(op.operands[1], Builder.before(op))
    for argument in stacks:
        if argument not in known:
            open_along_stages(argument, mesh, Builder(main.location, ir.InsertionPoint.at_block_begin(block)))
    return ticks
