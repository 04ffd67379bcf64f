"""Scans over layers that are cut: equal to the source, with each stage's layers alone on its devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import context, function_type, main_function
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import StagedPipeline, build
from meshbridge.pipelines.function import load
from meshbridge.pipelines.proof import compose
from meshbridge.read import formats
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.verification.verdict import verify
from tests.pipelines.scanned_steps import STEPS
from tests.pipelines.steps import (
    MICROBATCHES,
)

Tree = Any


def cut(step: Callable[..., Any], arguments: Tree, stages: int, schedule: str = "1f1b") -> StagedPipeline:
    """A step, cut into stages on one device each."""
    program = formats.unpack(jax.jit(step), context(), arguments)
    return build(program, Options.of(emit="local"), stages, schedule)


@pytest.mark.parametrize("name", STEPS)
def test_the_composition_equals_the_source(name: str) -> None:
    pipeline = cut(*STEPS[name])
    assert verify(pipeline.source.module, compose(pipeline)).equal


@pytest.mark.parametrize("name", ["gpt", "five layers with dropout"])
def test_gradients_of_weights_are_apart(name: str) -> None:
    pipeline = cut(*STEPS[name], "zero-bubble")
    assert verify(pipeline.source.module, compose(pipeline)).equal


@pytest.mark.parametrize(("name", "layers"), [("marked", [1, 1, 1, 1]), ("five layers, adam", [1, 2, 1, 1])])
def test_each_stage_has_several_chunks(name: str, layers: list[int]) -> None:
    """Under an interleaved schedule a stage has two."""
    pipeline = cut(*STEPS[name], "interleaved")
    assert pipeline.plan.schedule.chunks == 4
    assert verify(pipeline.source.module, compose(pipeline)).equal
    assert {part.division.sizes for part in pipeline.stacks.arguments if part.parts > 1} == {tuple(layers)}


@pytest.mark.parametrize("name", ["gpt", "adam", "llama", "marked", "gradients alone", "cast before the loop", "five layers"])
def test_stages_have_their_own_layers_alone(name: str) -> None:
    """In the loop activations cross, and gradients of what both ends of a model share; after it numbers alone."""
    step, arguments, stages = STEPS[name]
    pipeline = cut(step, arguments, stages)
    types: dict[Any, Any] = {}
    for call in pipeline.plan.calls:
        kind = function_type(main_function(call.fragment.module))
        types.update(zip((*call.inputs, *call.outputs), (*kind.inputs, *kind.results), strict=True))
    layers = len(arguments[0]["layers"]["up"])
    kernels = {leaf.shape[1:] for leaf in jax.tree.leaves(arguments[0]["layers"])}
    for send in pipeline.plan.sends:
        shape = tuple(types[send.slot].shape)
        assert shape[1:] not in kernels or shape[0] not in (layers, *range(layers // stages, layers // stages + 2))
        assert send.slot.microbatch is not None or shape == ()
    crossing = [tuple(types[send.slot].shape) for send in pipeline.plan.sends if send.slot.source.kind == "value"]
    activation = (arguments[1].shape[0] // MICROBATCHES, arguments[1].shape[1], arguments[0]["embed"].shape[1])
    assert crossing.count(activation) == 2 * (stages - 1) * MICROBATCHES
    for part in pipeline.stacks.arguments[1:]:
        assert part.parts in (1, stages)
    assert sum(part.parts == stages for part in pipeline.stacks.arguments) >= len(kernels) * stages


def pipelined(name: str, **options: Any) -> tuple[Callable[..., Any], Callable[..., Any], Tree]:
    """A step, the same on two stages of four devices, and its arguments."""
    step, (params, tokens), _ = STEPS[name]
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    rows = NamedSharding(mesh, P("fsdp"))
    shardings = {name: jax.tree.map(lambda _: rows, tree) for name, tree in params.items()}
    shardings["layers"] = jax.tree.map(lambda _: NamedSharding(mesh, P(None, "fsdp")), params["layers"])
    options |= {"in_shardings": (shardings, NamedSharding(mesh, P())), "out_shardings": (shardings, None)}
    return step, meshbridge.pipelined(step, stages=2, **options), (params, tokens)


def trained(name: str, schedule: str) -> tuple[Callable[..., Any], Tree, Any]:
    """The pipeline, the parameters after three steps, which are those of one device, and the tokens."""
    step, function, (params, tokens) = pipelined(name, schedule=schedule, donate_argnums=0)
    expected, found = params, params
    for _ in range(3):
        expected, expected_loss = jax.jit(step)(expected, tokens)
        found, loss = function(found, tokens)
        for own, plain in zip(jax.tree.leaves((found, loss)), jax.tree.leaves((expected, expected_loss)), strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    return function, found, tokens


@pytest.mark.parametrize(("name", "schedule"), [("gpt", "1f1b"), ("llama", "zero-bubble"), ("marked", "gpipe")])
def test_numbers(name: str, schedule: str) -> None:
    function, found, tokens = trained(name, schedule)
    kernel = found["layers"]["up"]
    shards = [shard.data for shard in kernel.addressable_shards]
    assert kernel.sharding.spec == P("stages", "fsdp", None)
    assert {shard.shape for shard in shards} == {(2, 2, kernel.shape[2])}
    again, _ = function(found, tokens)
    assert all(shard.is_deleted() for shard in shards)  # a step takes the parts as they are
    assert not again["layers"]["up"].is_deleted()


@pytest.mark.parametrize(
    ("name", "schedule", "layers"), [("five layers", "1f1b", [3, 2]), ("marked", "interleaved", [1, 1, 1, 1])]
)
def test_stacks_that_no_sharding_describes(name: str, schedule: str, layers: list[int]) -> None:
    """Parts of several sizes, or several on one stage."""
    function, found, tokens = trained(name, schedule)
    kernel = found["layers"]["up"]
    assert isinstance(kernel, meshbridge.LayerStack)
    assert [part.shape[0] for part in kernel.parts] == layers
    assert {part.sharding.spec for part in kernel.parts} == {P(None, "fsdp", None)}
    stages = [part.sharding.device_set for part in kernel.parts]
    assert [stages.index(stage) for stage in stages] == [number % 2 for number in range(len(layers))]
    whole = np.asarray(kernel)
    assert whole.shape == kernel.shape == (sum(layers), *kernel.parts[0].shape[1:])
    assert (kernel.ndim, kernel.size, kernel.nbytes, len(kernel)) == (3, whole.size, whole.nbytes, sum(layers))
    np.testing.assert_array_equal(jnp.asarray(kernel), whole)
    np.testing.assert_array_equal(kernel[-1], whole[-1])
    np.testing.assert_array_equal(kernel[1:3], whole[1:3])
    np.testing.assert_array_equal(np.stack([*kernel]), whole)
    np.testing.assert_array_equal(kernel.rows(1, len(whole)), whole[1:])
    with pytest.raises(IndexError, match=f"layer {len(whole)} of a stack of {len(whole)}"):
        kernel[len(whole)]
    other, _ = pipelined(name)[1](found, tokens)  # with another cut, or another mesh: a copy
    assert not kernel.block_until_ready().is_deleted()
    again, _ = function(found, tokens)
    assert all(part.is_deleted() for part in kernel.parts)
    np.testing.assert_allclose(again["layers"]["up"], other["layers"]["up"], rtol=2e-5, atol=1e-6)
    assert f"layers of parts: {' + '.join(map(str, layers))}" in repr(again["layers"]["up"])


def test_the_result_of_a_step_is_an_argument_without_shardings() -> None:
    step, _, (params, tokens) = pipelined("gpt")
    first, _ = meshbridge.pipelined(step, stages=2)(params, tokens)
    second, _ = meshbridge.pipelined(step, stages=2)(first, tokens)
    expected, _ = jax.jit(step)(jax.jit(step)(params, tokens)[0], tokens)
    for own, plain in zip(jax.tree.leaves(second), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    with pytest.raises(meshbridge.MeshError, match=r"expected float32\[4, 8, 32\], found float32\[4, 8, 31\]"):
        load(meshbridge.pipelined(step, stages=2).lower(params, tokens), jax.devices(), CompilerOptions.of("default"))(
            [leaf[..., :31] if leaf.shape == (4, 8, 32) else leaf for leaf in jax.tree.leaves((params, tokens))], [""] * 6
        )


def test_what_is_verified_on_devices() -> None:
    _, function, arguments = pipelined("gpt")
    proof = function.verify(*arguments)  # type: ignore[attr-defined]
    assert proof.equal, proof.table()
