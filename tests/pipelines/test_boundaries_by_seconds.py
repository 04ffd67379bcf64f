"""On a machine with a topology stages begin where the step is predicted shortest, in scans and in unrolled programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshbridge
from meshbridge.ir.mlir import context
from meshbridge.pipeline import Options
from meshbridge.pipelines.boundaries import Boundaries
from meshbridge.pipelines.build import PreparedStep, StagedPipeline, prepare
from meshbridge.pipelines.prediction import report
from meshbridge.pipelines.proof import compose
from meshbridge.pipelines.schedules import named
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import accumulating

Tree = Any

WIDTH, ROWS, LAYERS, MACHINE = 4096, 8192, 6, "v5p:2x1x1"
HEAD = 5 * WIDTH
"""The head has the work of five layers."""


def loss(params: Tree, x: Any, stages: int, *, form: str = "scanned") -> Any:
    """A chain of equal layers and a head: under a scan, or unrolled, with a boundary before each layer or without; or with
    boundaries of which one is between two layers that `jax.checkpoint` recomputes together."""
    if form == "scanned":
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["layers"])
    elif form == "recomputed in pairs":
        for numbers in ((0,), (1, 2), (3,), (4,), (5,)):
            x = jax.checkpoint(partial(layers_through, numbers))([params["layers"][number] for number in numbers], x)
    else:
        for number, layer in enumerate(params["layers"]):
            x = jnp.tanh((x if form == "unrolled" else meshbridge.stage(f"layer {number}")(x)) @ layer)
    return (x @ params["head"]).astype(jnp.float32).sum()


def layers_through(numbers: Sequence[int], layers: Sequence[Any], x: Any) -> Any:
    """Layers with boundaries before them."""
    for number, layer in zip(numbers, layers, strict=True):
        x = jnp.tanh(meshbridge.stage(f"layer {number}")(x) @ layer)
    return x


def prepared(form: str, *, width: int = WIDTH, rows: int = ROWS, memory: float | None = None) -> PreparedStep:
    """A step of eight microbatches for two stages of one device."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731
    layers = array(LAYERS, width, width) if form == "scanned" else [array(width, width)] * LAYERS
    arguments = {"layers": layers, "head": array(width, HEAD * width // WIDTH)}, array(8 * rows, width)

    def own(params: Tree, x: Any, stages: int) -> Any:
        return loss(params, x, stages, form=form)

    step = jax.jit(accumulating(own, 1, microbatches=8), donate_argnums=0)
    options = Options.of(emit="mesh", machine=MACHINE)
    if memory is not None:
        assert options.target.machine is not None
        options = replace(options, target=replace(options.target, machine=replace(options.target.machine, memory_bytes=memory)))
    return prepare(formats.unpack(step, context(), arguments), options, 2)


def layers_of(pipeline: StagedPipeline) -> list[int]:
    """The layers of each stage."""
    kernels: dict[int, int] = {}
    for slot in pipeline.plan.arguments:
        part = pipeline.stacks.arguments[slot.source.number]
        count = part.division.layers_of(part.position) if part.parts > 1 else 1
        kernels[slot.group] = kernels.get(slot.group, 0) + count
    return [kernels[0] - 1, kernels[1] - 1]  # the batch, the head


def by_default(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on stages begin where they do without a machine. Returns a list of what the search estimates for these steps."""
    estimates: list[float] = []

    def even(self: Boundaries, begins: tuple[int, ...]) -> tuple[int, ...]:
        estimates.append(self.estimate(begins).seconds)
        return begins

    monkeypatch.setattr(Boundaries, "best", even)
    return estimates


@pytest.mark.parametrize("form", ["scanned", "marked", "unrolled"])
def test_a_stage_with_a_head_has_fewer_layers(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = named("1f1b", 2, 2, 8)
    step = prepared(form)
    chosen = step.under(schedule)
    found = report(chosen)
    assert layers_of(chosen) == [5, 1]
    estimates = by_default(monkeypatch)
    default = step.under(schedule)
    slower = report(default)
    assert found.seconds is not None
    assert slower.seconds is not None
    assert estimates == [pytest.approx(slower.seconds, rel=0.1)]
    if form == "unrolled":  # FLOPs find the same
        assert found.seconds <= slower.seconds
    else:
        assert layers_of(default) == [3, 3]
        assert found.seconds < 0.9 * slower.seconds


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 2), ("zero-bubble", 2), ("interleaved", 4)])
def test_the_estimate_is_near_the_prediction(schedule: str, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = by_default(monkeypatch)
    predicted = report(prepared("scanned").under(named(schedule, 2, chunks, 8)))
    assert estimates == [pytest.approx(predicted.seconds, rel=0.1)]


def test_memory_moves_boundaries() -> None:
    """The first stage, which holds the activations of most microbatches, has as many layers as fit."""
    schedule = named("gpipe", 2, 2, 8)
    roomy = prepared("scanned")
    peak = report(roomy.under(schedule)).stages[0].peak_bytes
    tight = prepared("scanned", memory=0.9 * peak)
    pipeline = tight.under(schedule)
    assert layers_of(pipeline)[0] < layers_of(roomy.under(schedule))[0]
    assert report(pipeline).stages[0].peak_bytes < 0.9 * peak


def test_a_step_that_cannot_be_cut_at_each_point() -> None:
    """Two layers that are recomputed together are in one stage of the even cut, and can be in no two."""
    assert layers_of(prepared("recomputed in pairs").under(named("1f1b", 2, 2, 8))) == [3, 3]


@pytest.mark.parametrize(("form", "schedule"), [("scanned", "interleaved"), ("unrolled", "zero-bubble"), ("marked", "1f1b")])
def test_the_composition_equals_the_source(form: str, schedule: str) -> None:
    step = prepared(form, width=8, rows=8)
    pipeline = step.under(named(schedule, 2, 4 if schedule == "interleaved" else 2, 8))
    assert verify(pipeline.source.module, compose(pipeline)).equal
