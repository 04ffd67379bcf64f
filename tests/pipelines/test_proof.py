"""Pipelines compute what their source computes: proved for all steps and schedules, and faults are found."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from meshbridge.ir.mlir import context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import StagedPipeline, build
from meshbridge.pipelines.plan import Call
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import STEPS


def pipeline_of(name: str, schedule: str = "1f1b", groups: int | None = None) -> StagedPipeline:
    """A step of `STEPS` as a pipeline on meshes of one device."""
    step, arguments, stages = STEPS[name]
    program = formats.unpack(jax.jit(step), context(), arguments)
    return build(program, Options.of(emit="local"), groups or stages, schedule)


def is_equal(pipeline: StagedPipeline) -> bool:
    """Whether the fragments in the order of the schedule compute what the source computes."""
    composed = compose(pipeline)
    composed.operation.verify()
    return verify(pipeline.source.module, composed).equal


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_the_composition_equals_the_source(name: str, schedule: str) -> None:
    assert is_equal(pipeline_of(name, schedule))


@pytest.mark.parametrize("name", ["clipping", "encoder and decoder"])
@pytest.mark.parametrize(("schedule", "groups"), [("gpipe", 4), ("interleaved", 2), ("1f1b", 2)])
def test_other_schedules(name: str, schedule: str, groups: int) -> None:
    assert is_equal(pipeline_of(name, schedule, groups))


def test_a_wrong_transfer_is_found() -> None:
    pipeline = pipeline_of("mlp")
    steps = list(pipeline.plan.steps)
    index = next(i for i, step in enumerate(steps) if isinstance(step, Call) and step.task and step.task.microbatch == 1)
    call = steps[index]
    assert isinstance(call, Call)
    earlier = tuple(slot._replace(microbatch=0) if slot.microbatch == 1 else slot for slot in call.inputs)
    steps[index] = replace(call, inputs=earlier)
    assert earlier != call.inputs
    assert not is_equal(replace(pipeline, plan=replace(pipeline.plan, steps=tuple(steps))))
