"""Realistic models whose layers are scanned, as pipelines: equal to the source, and nothing crosses but activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.ir.mlir import context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import build
from meshbridge.pipelines.proof import compose
from meshbridge.pipelines.stacked import build_stacked
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from testdata.program import Program
from testdata.realistic import dit, gemma, gpt, griffin, mamba2, mla, t5
from testdata.realistic.accumulated import accumulated
from testdata.realistic.llama import llama
from tests.programs import tiny_realistic as tiny

MODELS: dict[str, Callable[..., Program]] = {
    "llama": partial(llama, "fsdp_tp", layers=4, scan=True, **tiny.SEQUENCES),
    "gpt": partial(gpt.gpt, "sp", layers=4, scan=True, size=tiny.GPT),
    "gemma": partial(gemma.gemma, "fsdp_tp", size=tiny.GEMMA),
    "griffin": partial(griffin.griffin, "fsdp_tp", size=tiny.GRIFFIN),
    "mamba2": partial(mamba2.mamba2, "fsdp_tp", size=tiny.MAMBA2),
    "dit": partial(dit.dit, size=tiny.DIT),
    "t5": partial(t5.t5, "fsdp_tp", size=tiny.T5),
    "mla": partial(mla.mla, "fsdp_tp", size=tiny.MLA),
}

STAGES = {"t5": 4}
"""The stages of a model, if not two: those of an encoder and a decoder."""


def step(name: str) -> Program:
    """The model's step on four microbatches, on the four devices of a stage."""
    program = MODELS[name](4, annotated=True)
    wide = jax.tree.map(tiny._wide, program.arguments)
    return accumulated(replace(program, arguments=wide), 4)


def traced_step(name: str) -> formats.Program:
    """The same, traced."""
    program = step(name)
    mesh = program.mesh()
    with jax.set_mesh(mesh):
        return formats.unpack(program.jit(mesh), context(), program.avals())


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_the_composition_equals_the_source(name: str) -> None:
    traced = traced_step(name)
    pipeline = build(traced, Options.of(emit="local"), STAGES.get(name, 2), "1f1b")
    assert {part.parts for part in pipeline.stacks.arguments} == {1, 2}
    assert verify(pipeline.source.module, compose(pipeline)).equal
    assert all(send.slot.microbatch is not None for send in pipeline.plan.sends)  # the optimizer's ops are where the layers are
    assert {send.slot.source.kind for send in pipeline.plan.sends} == {"value"}  # no kernel and no sum of gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_one_program_equals_the_source(name: str) -> None:
    traced = traced_step(name)
    built = build_stacked(traced, Options.of(emit="mesh"), 2)
    assert [ticks.is_forward for ticks in built.ticks] == [True, False]
    assert verify(traced.module, built.module).equal


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("stacked", marks=pytest.mark.slow)])
def test_numbers_of_a_llama(schedule: str) -> None:
    program = step("llama")
    mesh, arguments = program.mesh(), program.example_arguments()
    with jax.set_mesh(mesh):
        found = meshbridge.pipelined(replace(program, donated=()).jit(mesh), stages=2, schedule=schedule)(*arguments)
    alone = program.one_device_mesh()
    with jax.set_mesh(alone):
        expected = program.jit(alone)(*arguments)
    for own, plain in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-5)
