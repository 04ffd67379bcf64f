"""Two scans over layers that are cut as one sequence: equal to the source, with each stage's layers alone on its devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshbridge
from meshbridge.ir.mlir import MeshError, context, function_type, main_function
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import StagedPipeline, build, prepare
from meshbridge.pipelines.plan import Slot
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import MICROBATCHES, accumulating
from tests.pipelines.two_scans import STEPS, marked_loss, translator


def cut(name: str, schedule: str = "1f1b") -> StagedPipeline:
    """A step, cut into stages on one device each."""
    step, arguments, stages = STEPS[name]
    return build(formats.unpack(jax.jit(step), context(), arguments), Options.of(emit="local"), stages, schedule)


SLOW = {"marked", "one marked", "loss scaling", "dropout"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in STEPS])
def test_the_composition_equals_the_source(name: str) -> None:
    pipeline = cut(name)
    assert verify(pipeline.source.module, compose(pipeline)).equal


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "stages"), [("gpipe", 4), ("zero-bubble", 4), ("interleaved", 2)])
def test_other_schedules(schedule: str, stages: int) -> None:
    step, arguments, _ = STEPS["clipping"]
    pipeline = build(formats.unpack(jax.jit(step), context(), arguments), Options.of(emit="local"), stages, schedule)
    assert pipeline.plan.schedule.chunks == 4
    assert verify(pipeline.source.module, compose(pipeline)).equal


def shapes(pipeline: StagedPipeline) -> dict[Slot, tuple[int, ...]]:
    """The shapes of values that fragments read and return."""
    found: dict[Slot, tuple[int, ...]] = {}
    for call in pipeline.plan.calls:
        kind = function_type(main_function(call.fragment.module))
        types = zip((*call.inputs, *call.outputs), (*kind.inputs, *kind.results), strict=True)
        found |= {slot: tuple(type_.shape) for slot, type_ in types}
    return found


def read(pipeline: StagedPipeline, arguments: Any) -> dict[tuple[str, ...], dict[int, tuple[int, int]]]:
    """By the keys of an argument, and by stage, the rows of it that the stage reads."""
    found: dict[tuple[str, ...], dict[int, tuple[int, int]]] = {}
    leaves = jax.tree.leaves_with_path(arguments)
    for slot in pipeline.plan.arguments:
        part = pipeline.stacks.arguments[slot.source.number]
        path, leaf = leaves[part.number]
        keys = tuple(str(getattr(key, "key", "")) for key in path[1:])
        found.setdefault(keys, {})[slot.group] = part.bounds(leaf.shape[0])
    return found


def test_stages_have_their_own_layers_alone() -> None:
    """Two stages have the encoder, two the decoder; what crosses after the loop are numbers."""
    pipeline, arguments = cut("clipping"), STEPS["clipping"][1]
    stages = {"encoder": {0: (0, 2), 1: (2, 4)}, "decoder": {2: (0, 2), 3: (2, 4)}}
    for keys, found in read(pipeline, arguments).items():
        assert found == stages.get(keys[0], found)
    known = shapes(pipeline)
    for send in pipeline.plan.sends:
        assert send.slot.microbatch is not None or len(known[send.slot]) < 2
    (source, target), microbatch = arguments[1], arguments[1][0].shape[0] // MICROBATCHES
    crossing = [known[send.slot] for send in pipeline.plan.sends if send.slot.microbatch == 0]
    width = arguments[0]["embed"].shape[1]
    encoded, decoded = ((microbatch, tokens.shape[1], width) for tokens in (source, target))
    # The encoder's output is in both stages of the decoder, from which its gradient comes back in one sum.
    assert crossing.count(encoded) == 2 * 3
    assert crossing.count(decoded) == 2 * 1


def test_a_stage_of_both() -> None:
    found = read(cut("a stage of both"), STEPS["a stage of both"][1])
    assert found["encoder", "up"] == {0: (0, 1)}
    assert found["decoder", "up"] == {0: (0, 1), 1: (1, 3)}


def test_what_is_around_a_tower_is_in_its_stages() -> None:
    """Projections before a tower are where its layers are, forward and backward; what follows both is in the last stage."""
    found = read(cut("towers"), STEPS["towers"][1])
    stages = {keys: [*rows] for keys, rows in found.items()}
    assert (stages["image", "in"], stages["text", "in"]) == ([0], [2])
    assert (stages["image", "layers", "up"], stages["text", "layers", "up"]) == ([0, 1], [2, 3])
    assert (stages["image", "out"], stages["text", "out"]) == ([3], [3])


def test_names_of_boundaries() -> None:
    """Of boundaries in scans and one between, those are taken that make stages equal."""
    program = formats.unpack(jax.jit(accumulating(marked_loss, 1)), context(), translator(2, 2))
    for stages, names in ((4, ("encoder from 1", "memory", "decoder from 3")), (2, ("memory",))):
        assert prepare(program, Options.of(emit="local"), stages).undecided_loop(stages).names == names
    with pytest.raises(
        MeshError, match=r"(?s)two_scans.py:.*one of the scans over layers in which 4 stages can begin, expected 5"
    ):
        prepare(program, Options.of(emit="local"), 5).undecided_loop(5)


@pytest.mark.parametrize("name", ["clipping", "a stage of both"])
def test_numbers(name: str) -> None:
    step, (params, batch), stages = STEPS[name]
    function = meshbridge.pipelined(step, stages=stages)
    expected, found = params, params
    for _ in range(2):
        expected, expected_loss = jax.jit(step)(expected, batch)
        found, loss = function(found, batch)
    for own, plain in zip(jax.tree.leaves((found, loss)), jax.tree.leaves((expected, expected_loss)), strict=True):
        np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    if name == "clipping":
        stages_of = {tower: found[tower]["up"].devices() for tower in ("encoder", "decoder")}
        assert [{device.id for device in stages_of[tower]} for tower in stages_of] == [{0, 1}, {2, 3}]
