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
from meshbridge.pipelines.build import build, decide
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines.steps import accumulating, block, cross_entropy, gpt, in_stacks, marked_scan_loss, one_scan_loss

Tree = Any


def decided(loss: Callable[..., Any], layers: int, stages: int) -> Any:
    """A step with a transformer's parameters in stacks."""
    params, tokens = gpt(layers)
    program = formats.unpack(jax.jit(accumulating(loss, stages)), context(), (in_stacks(params), tokens))
    return decide(program, Options.of(emit="local"), stages)


def test_layers_that_the_stages_do_not_divide() -> None:
    with pytest.raises(MeshError) as raised:
        decided(one_scan_loss, 6, 4)
    text = str(raised.value)
    assert "steps.py:" in text
    assert "'stablehlo.while' op runs 6 layers, which 4 stages of equally many layers do not divide" in text
    assert "hint: choose a number of stages that divides 6" in text


def test_stacks_that_are_sharded_along_layers() -> None:
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    params, tokens = gpt(4)
    layers = NamedSharding(mesh, P("fsdp"))
    step = jax.jit(accumulating(one_scan_loss, 1), in_shardings=(layers, None))
    program = formats.unpack(step, context(), (in_stacks(params), tokens))
    text = r"(?s)steps.py:.*sharded along its layers: 4 devices do not divide the 2 of a stage.*shard another dimension"
    with pytest.raises(MeshError, match=text):
        decide(program, Options.of(emit="local"), 2)


def test_boundaries_in_a_scan_and_beside_it() -> None:
    def loss(params: Tree, tokens: Any, stages: int) -> Any:
        return marked_scan_loss({**params, "embed": meshbridge.stage("first")(params["embed"])}, tokens, stages)

    with pytest.raises(MeshError, match=r"(?s)test_layer_scans.py:.*of stage 'first' is beside boundaries in a scan over layers"):
        decided(loss, 4, 2)


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
    with pytest.raises(MeshError, match=r"(?s)test_layer_scans.py:.*reads one stack of layers forward and another one backward"):
        decide(program, Options.of(emit="local"), 2)


def test_a_scan_with_less_work_than_a_stage_stays() -> None:
    def loss(params: Tree, tokens: Any, stages: int) -> Any:
        small, _ = jax.lax.scan(lambda x, p: (x * p["up"].sum(), None), jnp.float32(1), params["layers"])
        x = params["embed"][tokens]
        for number in range(4):
            x = block(jax.tree.map(lambda stack, number=number: stack[number], params["layers"]), x)
        return cross_entropy(x @ params["embed"].T, tokens) + small

    found = decided(loss, 4, 2)
    assert {part.parts for part in found.stacks.arguments} == {1}
    assert not found.loop.names


def test_names_of_boundaries() -> None:
    assert decided(one_scan_loss, 4, 2).loop.names == ("layers from 2",)
    assert decided(marked_scan_loss, 4, 4).loop.names == ("layer from 1", "layer from 2", "layer from 3")
