"""Cuts without boundaries: equal to the source, even, and across few bytes; what cannot be cut is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines.automatic import SLACK, cheapest_cut
from meshbridge.pipelines.build import StagedPipeline, build
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import (
    MICROBATCHES,
    accumulating,
    clipped,
    gpt,
    gpt_loss,
    mixture,
    mixture_loss,
    mlp,
    mlp_loss,
    rematerialized,
    translator,
    translator_loss,
)

Tree = Any

UNMARKED: dict[str, tuple[Callable[..., Any], Tree, int]] = {
    "mlp": (accumulating(mlp_loss, 1, update=clipped), mlp(), 4),
    "tied embeddings": (accumulating(gpt_loss, 1), gpt(), 2),
    "rematerialized": (accumulating(rematerialized, 1), gpt(), 2),
    "mixture of experts": (accumulating(mixture_loss, 1), mixture(), 2),
    "encoder and decoder": (accumulating(translator_loss, 1), translator(), 4),
}
"""Steps without boundaries, their arguments, and a number of stages."""


def cut(step: Callable[..., Any], arguments: Tree, stages: int, schedule: str = "1f1b") -> StagedPipeline:
    """A step, cut into stages on one device each."""
    program = formats.unpack(jax.jit(step), context(), arguments)
    return build(program, Options.of(emit="local"), stages, schedule)


@pytest.mark.parametrize("name", UNMARKED)
def test_the_composition_equals_the_source(name: str) -> None:
    pipeline = cut(*UNMARKED[name])
    assert verify(pipeline.source.module, compose(pipeline)).equal


def test_layers_are_cut_where_one_value_crosses() -> None:
    pipeline = cut(*UNMARKED["mlp"])
    ends = {(send.slot.group, send.target.group) for send in pipeline.plan.sends if send.slot.microbatch is not None}
    assert ends == {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}
    assert sum(send.slot.microbatch is not None for send in pipeline.plan.sends) == 6 * MICROBATCHES
    read = {fragment.site: [source.kind for source in fragment.inputs] for fragment in pipeline.plan.fragments}
    assert [kinds.count("argument") for site, kinds in read.items() if site.kind == "forward"] == [2] * 4  # a kernel and a bias


def test_gradients_of_weights_are_apart() -> None:
    pipeline = cut(*UNMARKED["mlp"], "zero-bubble")
    assert verify(pipeline.source.module, compose(pipeline)).equal


def refusal(step: Callable[..., Any], *arguments: Any) -> str:
    """The diagnostic for a step that is cut into two stages."""
    with pytest.raises(MeshError) as raised:
        cut(step, arguments, 2)
    return str(raised.value)


def test_a_scan_over_all_layers() -> None:
    def loss(params: Tree, batch: Tree, _: int) -> Any:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
        layer = lambda x, p: (jnp.tanh(x @ p["w"] + p["b"]), None)  # noqa: E731
        return (jax.lax.scan(layer, batch[0], stacked)[0] ** 2).mean()

    pipeline = cut(accumulating(loss, 1), mlp(), 4)
    assert verify(pipeline.source.module, compose(pipeline)).equal
    # Layers that the loss stacks are stacked by each stage, which has no others.
    read = {fragment.site: [source.kind for source in fragment.inputs] for fragment in pipeline.plan.fragments}
    assert [kinds.count("argument") for site, kinds in read.items() if site.kind == "forward"] == [2] * 4


def test_one_op_with_most_of_the_work() -> None:
    with pytest.raises(MeshError) as raised:
        cut(accumulating(mlp_loss, 1), mlp(1), 4)
    text = str(raised.value)
    assert "'stablehlo.dot_general' op has too much of the work for 4 equal stages" in text
    assert "in layers that are unrolled, or scanned with jax.lax.scan" in text


def test_a_scan_that_reads_layers_in_an_order_of_its_own() -> None:
    """All stages have all layers, since none is known to be of one stage alone."""

    def loss(params: Tree, batch: Tree, _: int) -> Any:
        kernels = jnp.stack([p["w"] for p in params["layers"]])
        layer = lambda x, number: (jnp.tanh(x @ kernels[number]), None)  # noqa: E731
        return (jax.lax.scan(layer, batch[0], jnp.array([3, 1, 2, 0]))[0] ** 2).mean()

    pipeline = cut(accumulating(loss, 1), mlp(), 2)
    assert verify(pipeline.source.module, compose(pipeline)).equal


def test_no_gradient_in_the_loop() -> None:
    def loss(params: Tree, batch: Tree) -> Any:
        parts = jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, leaf.shape[1]), batch)
        return jax.lax.scan(lambda total, each: (total + mlp_loss(params, each, 1), None), jnp.float32(0), parts)[0]

    assert "computes no gradient in its body" in refusal(loss, *mlp())


def test_no_loop() -> None:
    text = refusal(lambda params, batch: jax.grad(mlp_loss)(params, batch, 1), *mlp())
    assert "steps.py" in text.splitlines()[0], "the line of the most work"
    assert "the program has no loop of microbatches, nor marks stages" in text
    assert "hint: scan over microbatches with jax.lax.scan" in text


def test_an_interleaved_schedule_has_two_chunks_for_each_stage() -> None:
    pipeline = cut(*UNMARKED["mlp"][:2], 2, "interleaved")
    assert pipeline.plan.schedule.chunks == 4
    assert verify(pipeline.source.module, compose(pipeline)).equal


def loads(work: list[float], begins: tuple[int, ...]) -> list[float]:
    """The work of each chunk."""
    return [float(sum(part)) for part in np.split(np.array(work), begins)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=4, max_size=9), st.integers(2, 4))
def test_the_cut_is_the_cheapest(ops: list[tuple[int, int]], chunks: int) -> None:
    work, crossing = [float(first) for first, _ in ops], [float(second) for _, second in ops]
    found = tuple(cheapest_cut(work, crossing, chunks))
    cuts = list(combinations(range(1, len(work)), chunks - 1))
    most_even = min(max(loads(work, begins)) for begins in cuts)
    allowed = [begins for begins in cuts if max(loads(work, begins)) <= SLACK * most_even * (1 + 1e-9)]
    assert found in allowed
    assert sum(crossing[begin - 1] for begin in found) == min(sum(crossing[begin - 1] for begin in begins) for begins in allowed)
