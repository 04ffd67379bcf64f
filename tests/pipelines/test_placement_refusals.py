"""Steps that cannot be cut into stages, and their diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshbridge
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import build
from meshbridge.read import formats
from tests.pipelines.steps import MICROBATCHES, accumulating, mlp, mlp_loss

Tree = Any


def refusal(step: Callable[..., Any], *arguments: Any, stages: int = 2, schedule: Any = "1f1b") -> str:
    """The diagnostic for a step that is cut into stages."""
    program = formats.unpack(jax.jit(step), context(), arguments)
    with pytest.raises(MeshError) as raised:
        build(program, Options.of(emit="local"), stages, schedule)
    return str(raised.value)


def line_of(text: str) -> int:
    """The line of this file that contains `text` and this mark: # here"""
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    return next(number for number, line in lines if text in line and line.endswith("# here"))


def test_another_number_of_stages() -> None:
    text = refusal(accumulating(mlp_loss, 4), *mlp(), stages=5)
    assert "error: expected boundaries of 5 stages, or of a multiple, found 3: stage1, stage2, stage3" in text
    assert "hint: x = meshbridge.stage('name')(x) marks where a stage begins" in text


def test_no_loop_of_microbatches() -> None:
    def loss(params: Tree, x: Any) -> Any:
        x = meshbridge.stage("second")(x @ params["layers"][0]["w"])  # here
        return (x @ params["layers"][1]["w"]).sum()

    text = refusal(jax.grad(loss), mlp()[0], mlp()[1][0])
    assert f"{__file__}:{line_of('second')}" in text
    assert "of stage 'second' is in no loop of microbatches" in text
    assert "hint: scan over microbatches with jax.lax.scan" in text


def test_the_gradient_around_the_loop() -> None:
    def loss(params: Tree, batch: Tree) -> Any:
        microbatches = jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, *leaf.shape[1:]), batch)
        return jax.lax.scan(lambda total, each: (total + mlp_loss(params, each, 2), None), jnp.float32(0), microbatches)[0]

    text = refusal(jax.grad(loss), *mlp())
    assert "of stage 'stage1' is in another loop than the boundaries before it" in text


def test_a_boundary_in_a_branch() -> None:
    def loss(params: Tree, batch: Tree, _: int) -> Any:
        x = batch[0] @ params["layers"][0]["w"]
        marked = lambda x: meshbridge.stage("layer")(x) @ params["layers"][1]["w"]  # noqa: E731
        return (jax.lax.cond(x.sum() > 0, marked, jnp.tanh, x) ** 2).mean()

    text = refusal(accumulating(loss, 2), *mlp())
    assert "of stage 'layer' is in a branch" in text
    assert "hint: mark stages outside of jax.lax.cond" in text


@pytest.mark.parametrize("stages", [1, 2])
def test_an_unknown_number_of_microbatches(stages: int) -> None:
    def step(params: Tree, batch: Tree, count: Any) -> Any:
        def add(_: Any, gradients: Tree) -> Tree:
            return jax.tree.map(jnp.add, gradients, jax.grad(mlp_loss)(params, batch, stages))

        return jax.lax.fori_loop(0, count, add, jax.tree.map(jnp.zeros_like, params))  # here

    text = refusal(step, *mlp(), 4)
    assert f"{__file__}:{line_of('fori_loop')}" in text
    assert ("no known number of iterations", "but no known number of microbatches")[stages - 1] in text


def test_a_stage_that_needs_a_later_one() -> None:
    def loss(params: Tree, batch: Tree, _: int) -> Any:
        first, second, third, _ = (p["w"] for p in params["layers"])
        x = meshbridge.stage("early")(batch[0] @ first)
        y = meshbridge.stage("late")(batch[0] @ second)
        return ((x + meshbridge.stage("early")(y @ third)) ** 2).mean()  # here

    text = refusal(accumulating(loss, 3), *mlp(), stages=3)
    assert f"{__file__}:{line_of('early')}" in text
    assert "needs, at the boundary of stage 'early', a value of the forward pass of chunk 2 of 3, counted from 0" in text
    assert "hint: let all values pass the stages in one order" in text


def test_a_stage_that_is_marked_twice() -> None:
    def loss(params: Tree, batch: Tree, _: int) -> Any:
        x = batch[0]
        for p in params["layers"]:
            x = jnp.tanh(meshbridge.stage("repeated")(x) @ p["w"])  # here
        return x.sum()

    text = refusal(accumulating(loss, 2), *mlp())
    assert f"{__file__}:{line_of('repeated')}" in text
    assert "passes the boundary of stage 'repeated' again, which its operand has passed" in text
    assert "hint: give each stage a name of its own" in text


def test_a_microbatch_that_needs_the_one_before() -> None:
    def step(params: Tree, batch: Tree) -> Any:
        def descend(params: Tree, microbatch: Any) -> tuple[Tree, Any]:
            value, gradients = jax.value_and_grad(mlp_loss)(params, microbatch, 2)
            return jax.tree.map(lambda p, g: p - g, params, gradients), value

        return jax.lax.scan(descend, params, jax.tree.map(lambda leaf: leaf.reshape(MICROBATCHES, -1, leaf.shape[1]), batch))

    text = refusal(step, *mlp())
    assert "needs, at the boundary of stage 'stage1', a value of the backward pass of chunk 0 of 2" in text
    assert "for the microbatch before: no two could be computed at a time" in text
    assert "hint: add up gradients in the loop, and update parameters after it" in text


def test_a_checkpoint_around_two_stages() -> None:
    def loss(params: Tree, batch: Tree, _: int) -> Any:
        first, second, third, _ = (p["w"] for p in params["layers"])
        two = jax.checkpoint(lambda x: jnp.tanh(meshbridge.stage("second")(jnp.tanh(x @ first)) @ second))
        return (meshbridge.stage("third")(two(batch[0])) @ third).sum()

    text = refusal(accumulating(loss, 3), *mlp(), stages=3)
    assert "needs, at the boundary of stage 'second', a value of the backward pass of chunk 1 of 3" in text
    assert "hint: call jax.checkpoint within a stage" in text


def test_a_schedule_for_other_stages() -> None:
    text = refusal(accumulating(mlp_loss, 2), *mlp(), schedule="unknown")
    assert "schedule is 'unknown', expected one of gpipe, 1f1b, interleaved, zero-bubble, stacked, or a Schedule" in text


def test_microbatches_that_do_not_divide() -> None:
    text = refusal(accumulating(mlp_loss, 3), *mlp(6), stages=3, schedule="interleaved")
    assert "that 3 groups of devices divide, found 3 chunks and 4 microbatches" in text
