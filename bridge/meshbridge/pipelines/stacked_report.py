"""What a pipeline as one SPMD program costs, and a proof that it computes what the step computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from meshbridge.analysis.executions import executed
from meshbridge.cost.step import LOOPS
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.pipelines import schedules
from meshbridge.pipelines.prediction import Crossing, FragmentCost, PipelineReport, StageCost
from meshbridge.pipelines.proof import Proof
from meshbridge.pipelines.schedules import STACKED, Kind, Run, Task, Timeline
from meshbridge.pipelines.stacked import StackedPipeline
from meshbridge.pipelines.tick_phase import Ticks
from meshbridge.pipelines.topology import transfer_time
from meshbridge.read.formats import copy_module
from meshbridge.reports import Report, partition_and_report
from meshbridge.verification.verdict import MEMORY
from meshbridge.verification.verdict import verify as verify_programs

PROGRAM = "program"
"""The only fragment, which all stages run."""


def report_stacked(pipeline: StackedPipeline) -> PipelineReport:
    """Partitions the program, and predicts its step. Raises MeshError."""
    module = copy_module(pipeline.module)
    found, _ = partition_and_report(module, replace(pipeline.options, emit="mesh"))
    stages, microbatches = pipeline.stages, pipeline.microbatches
    loops = _tick_loops(pipeline, found)
    timeline = Timeline(tuple(sorted(_runs(pipeline, loops), key=lambda run: run.start)), stages) if loops else None
    idle = sum((stages - 1) * loop.tick for loop in loops)
    cost = (1, found.wire_bytes, found.memory.temporaries, found.seconds)
    return PipelineReport(
        STACKED,
        pipeline.options.target.name,
        pipeline.mesh_size,
        stages,
        microbatches,
        tuple(FragmentCost(PROGRAM, stage, *cost) for stage in range(stages)),
        tuple(
            StageCost(stage, found.memory.peak, microbatches, None if timeline is None else timeline.seconds - idle)
            for stage in range(stages)
        ),
        tuple(_crossings(pipeline, module)),
        found.seconds,
        None if timeline is None else idle / timeline.seconds,
        schedules.formula(STACKED, stages, microbatches),
        (timeline or schedules.gpipe(stages, microbatches).even_timeline()).runs,
    )


class _TickLoop(NamedTuple):
    """When a loop of ticks runs, and how long a tick takes, in seconds."""

    start: float
    tick: float
    ticks: Ticks


def _tick_loops(pipeline: StackedPipeline, found: Report) -> list[_TickLoop]:
    """The loops of ticks in the predicted step, in order; none without one."""
    slices = () if found.step is None else found.step.slices
    whole = [each for each in slices if each.resource == LOOPS and each.executions == 1]
    return [
        _TickLoop(each.start, each.seconds / each.iterations, ticks)
        for ticks in pipeline.ticks
        for each in whole
        if each.location == ticks.location
    ]


def _runs(pipeline: StackedPipeline, loops: Sequence[_TickLoop]) -> Iterator[Run]:
    """When each microbatch is on each stage."""
    for start, tick, ticks in loops:
        kind: Kind = "F" if ticks.is_forward else "B"
        for microbatch, stage in product(range(pipeline.microbatches), range(pipeline.stages)):
            begin = start + tick * (microbatch + (stage if ticks.is_forward else pipeline.stages - 1 - stage))
            yield Run(Task(kind, microbatch, stage), stage, begin, begin + tick)


def _crossings(pipeline: StackedPipeline, module: ir.Module) -> Iterator[Crossing]:
    """What permutes of the partitioned program send from stage to stage."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    sizes: dict[tuple[int, int], float] = defaultdict(float)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    whole, size = mesh_or_single(module), pipeline.mesh_size
    positions = {device: position for position, device in enumerate(whole.device_ids or range(whole.size))}
    own = Mesh("stage", whole.shape[1:])
    for op, times in executed(module):
        if op.name == "stablehlo.collective_permute":
            pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
            ends = {tuple(positions[int(device)] // size for device in pair) for pair in pairs}
            for source, reader in sorted(pair for pair in ends if pair[0] != pair[1]):
                sent = tensor_bytes(op.operands[0])
                counts[source, reader] += times
                sizes[source, reader] += times * sent
                if pipeline.options.target.devices is not None:
                    took = transfer_time(pipeline.options.target, own, pipeline.stages, source, reader, sent)
                    seconds[source, reader] += times * took.seconds
    return (Crossing(*pair, counts[pair], sizes[pair], seconds.get(pair)) for pair in sorted(counts))


def verify_stacked(pipeline: StackedPipeline, *, source: ir.Module | None = None, seed: int = 0, memory: float = MEMORY) -> Proof:
    """Evaluates the source beside the program of all stages, and that beside what it becomes on their devices. `memory` is in
    gigabytes. Raises MeshError for a program that has no exact evaluation."""
    partitioned = pipeline.partitioned("mesh").module
    composition = verify_programs(source or pipeline.source.module, pipeline.module, seed=seed, memory=memory)
    return Proof(composition, {PROGRAM: verify_programs(pipeline.module, partitioned, seed=seed, memory=memory)})
