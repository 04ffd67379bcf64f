"""The forms of a pipeline: a program for each fragment, which Python dispatches, or one SPMD program for all stages."""

from __future__ import annotations

from meshbridge import pipeline
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.pipelines import build as staged
from meshbridge.pipelines import mpmd_writer, prediction, proof
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.prediction import PipelineReport
from meshbridge.pipelines.proof import Proof
from meshbridge.pipelines.schedules import STACKED, Schedule
from meshbridge.pipelines.stacked import StackedPipeline, build_stacked
from meshbridge.pipelines.stacked_report import report_stacked, verify_stacked
from meshbridge.read.formats import Program
from meshbridge.verification.verdict import MEMORY

Pipeline = StagedPipeline | StackedPipeline


def build(program: Program, options: pipeline.Options, stages: int, schedule: str | Schedule) -> Pipeline:
    """The pipeline of a program with a loop of microbatches, for the mesh of one stage: one program under the schedule `stacked`,
    and fragments under any other one. Does not change the program. Raises MeshError for a program that has no such form."""
    if schedule == STACKED:
        return build_stacked(program, options, stages)
    return staged.build(program, options, stages, schedule)


def report(built: Pipeline) -> PipelineReport:
    """Partitions a pipeline, and predicts its step. Raises MeshError."""
    return report_stacked(built) if isinstance(built, StackedPipeline) else prediction.report(built)


def verify(built: Pipeline, *, source: ir.Module | None = None, seed: int = 0, memory: float = MEMORY) -> Proof:
    """Proves that a pipeline computes what its source computes, by exact evaluation; `source` is by default that of the pipeline.

    `memory` is in gigabytes. Raises MeshError for a program that has no exact evaluation."""
    if isinstance(built, StackedPipeline):
        return verify_stacked(built, source=source, seed=seed, memory=memory)
    return proof.verify(built, source=source, seed=seed, memory=memory)


def mapped(built: Pipeline) -> ir.Module:
    """A pipeline as a program of Shardy's MPMD dialect that is mapped to meshes. Raises MeshError for one SPMD program."""
    if isinstance(built, StackedPipeline):
        raise MeshError(
            f"error: the schedule '{STACKED}' is one SPMD program, and a mapped program has one for each stage"
            "\n  hint: choose another schedule, such as '1f1b', or partition the program"
        )
    return mpmd_writer.write(built)
