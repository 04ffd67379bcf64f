"""Scans over layers that are refused, and those that need no cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import PreparedStep, build, prepare
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import accumulating, block, cross_entropy, gpt, in_stacks, marked_scan_loss, one_scan_loss

Tree = Any


def prepared(loss: Callable[..., Any], layers: int, stages: int) -> PreparedStep:
    """A step with a transformer's parameters in stacks."""
    params, tokens = gpt(layers)
    program = formats.unpack(jax.jit(accumulating(loss, stages)), context(), (in_stacks(params), tokens))
    return prepare(program, Options.of(emit="local"), stages)


def refusal(step: PreparedStep) -> str:
    """The diagnostic for a step that cannot be cut."""
    with pytest.raises(MeshError) as raised:
        step.undecided_loop(step.stages)
    return str(raised.value)


def test_fewer_layers_than_stages() -> None:
    text = refusal(prepared(one_scan_loss, 3, 4))
    assert "steps.py:" in text
    assert "'stablehlo.while' op runs 3 layers, expected at least one for each of 4 stages" in text
    assert "hint: choose fewer stages" in text


def test_stacks_that_are_sharded_along_layers() -> None:
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    layers = NamedSharding(mesh, P("fsdp"))
    step = jax.jit(accumulating(one_scan_loss, 1), in_shardings=(layers, None))

    def given(count: int, stages: int) -> PreparedStep:
        params, tokens = gpt(count)
        program = formats.unpack(step, context(), (in_stacks(params), tokens))
        return prepare(program, Options.of(emit="local"), stages)

    text = refusal(given(4, 2))
    assert "sharded along its layers: 4 devices do not divide the 2 of a stage" in text
    assert "hint: shard another dimension" in text
    assert given(12, 2).undecided_loop(2).names == ("layers from 8",)  # each stage has a multiple of 4


@pytest.mark.parametrize(
    ("stages", "names"), [(2, ("layer from 2",)), (5, ("first", "layer from 1", "layer from 2", "layer from 3"))]
)
def test_boundaries_in_a_scan_and_beside_it(stages: int, names: tuple[str, ...]) -> None:
    def loss(params: Tree, tokens: Any, stages: int) -> Any:
        return marked_scan_loss({**params, "embed": meshbridge.stage("first")(params["embed"])}, tokens, stages)

    assert prepared(loss, 4, stages).undecided_loop(stages).names == names


def counted(down: str) -> Callable[..., Any]:
    """A step that computes a loss in a loop, in which it picks layers by number: of one kernel the last one first."""

    def step(params: Tree, tokens: Any) -> Any:
        def pick(name: str, stack: Any, number: Any) -> Any:
            return jax.lax.dynamic_index_in_dim(stack, 3 - number if name == down else number, keepdims=False)

        def loss(tokens: Any) -> Any:
            def layer(state: tuple[Any, Any]) -> tuple[Any, Any]:
                own = {name: pick(name, stack, state[0]) for name, stack in params["layers"].items()}
                return state[0] + 1, block(own, state[1])

            _, x = jax.lax.while_loop(lambda state: state[0] < 4, layer, (0, params["embed"][tokens]))
            return cross_entropy(x @ params["embed"].T, tokens)

        return jax.lax.scan(lambda total, part: (total + loss(part), None), jnp.float32(0), tokens.reshape(4, 2, -1))[0]

    return step


def test_layers_that_a_loop_picks_by_number() -> None:
    params, tokens = gpt(4)
    program = formats.unpack(jax.jit(counted("")), context(), (in_stacks(params), tokens))
    pipeline = build(program, Options.of(emit="local"), 2, "gpipe")
    assert [part.parts for part in pipeline.stacks.arguments].count(2) == 8
    assert verify(pipeline.source.module, compose(pipeline)).equal


def test_stacks_that_are_read_in_two_orders() -> None:
    params, tokens = gpt(4)
    program = formats.unpack(jax.jit(counted("up")), context(), (in_stacks(params), tokens))
    text = refusal(prepare(program, Options.of(emit="local"), 2))
    assert "test_layer_scans.py:" in text
    assert "reads one stack of layers forward and another one backward" in text


def test_a_scan_with_less_work_than_a_stage_stays() -> None:
    def loss(params: Tree, tokens: Any, stages: int) -> Any:
        small, _ = jax.lax.scan(lambda x, p: (x * p["up"].sum(), None), jnp.float32(1), params["layers"])
        x = params["embed"][tokens]
        for number in range(4):
            x = block(jax.tree.map(lambda stack, number=number: stack[number], params["layers"]), x)
        return cross_entropy(x @ params["embed"].T, tokens) + small

    found = prepared(loss, 4, 2)
    assert found.layers(2) is None
    assert not found.undecided_loop(2).names


@pytest.mark.parametrize(
    ("loss", "layers", "stages", "names"),
    [
        (one_scan_loss, 4, 2, ("layers from 2",)),
        (marked_scan_loss, 4, 4, ("layer from 1", "layer from 2", "layer from 3")),
        (one_scan_loss, 5, 3, ("layers from 2", "layers from 4")),
        (one_scan_loss, 6, 4, ("layers from 1", "layers from 3", "layers from 5")),
    ],
)
def test_boundaries_of_layers(loss: Callable[..., Any], layers: int, stages: int, names: tuple[str, ...]) -> None:
    """Where the stages do not divide the layers, those in the middle have one more."""
    assert prepared(loss, layers, stages).undecided_loop(stages).names == names
