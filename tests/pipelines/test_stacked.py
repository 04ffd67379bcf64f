"""Pipelines as one SPMD program: equal to the step, partitioned and predicted like any program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines.stacked import build_stacked
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.pipelines import steps
from tests.pipelines.scanned_steps import STEPS as SCANNED
from tests.pipelines.scanned_steps import stacks
from tests.pipelines.steps import (
    MICROBATCHES,
    accumulating,
    cross_entropy,
    descend,
    gpt,
    one_scan_loss,
)

Tree = Any


def dropped(params: Tree, batch: Tree) -> tuple[Tree, Any]:
    """A step with dropout in scanned layers, whose key the loop carries and splits."""
    tokens, seed = batch

    def loss(params: Tree, tokens: Any, key: Any) -> Any:
        def layer(x: Any, own: tuple[Any, Tree]) -> tuple[Any, None]:
            number, p = own
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.75, x.shape)
            return jnp.where(kept, steps.block(p, x), x), None

        numbers = jnp.arange(len(params["layers"]["up"]))
        x, _ = jax.lax.scan(layer, params["embed"][tokens], (numbers, params["layers"]))
        return cross_entropy(x @ params["embed"].T, tokens)

    def add(carry: tuple[Tree, Any], microbatch: Tree) -> tuple[tuple[Tree, Any], Any]:
        total, key = carry
        key, own = jax.random.split(key)
        value, gradients = jax.value_and_grad(loss)(params, microbatch, own)
        return (jax.tree.map(jnp.add, total, gradients), key), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    (gradients, key), values = jax.lax.scan(add, (zeros, jax.random.key(seed)), steps.parts(tokens))
    return descend(params, gradients), (values, jax.random.key_data(key))


def by_largest(params: Tree, tokens: Any) -> Tree:
    """A step that keeps the largest gradient of all microbatches instead of their sum, and divides each by its norm."""

    def add(largest: Tree, part: Any) -> tuple[Tree, Any]:
        gradients = jax.grad(one_scan_loss)(params, part, 1)
        norm = sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients))
        return jax.tree.map(lambda m, g: jnp.maximum(m, g / (1.0 + norm)), largest, gradients), norm

    largest, norms = jax.lax.scan(add, jax.tree.map(lambda x: x - 1.0, params), steps.parts(tokens))
    return descend(params, largest), norms


def rematerialized_loss(params: Tree, tokens: Any, stages: int) -> Any:
    """A loss whose whole scan is computed again in the backward pass."""
    through = jax.checkpoint(lambda x, p: jax.lax.scan(lambda x, p: (steps.block(p, x), None), x, p)[0])
    return cross_entropy(through(params["embed"][tokens], params["layers"]) @ params["embed"].T, tokens)


def forward(params: Tree, tokens: Any) -> Any:
    """The loss alone."""
    add = lambda total, part: (total + one_scan_loss(params, part, 1), None)  # noqa: E731
    return jax.lax.scan(add, jnp.float32(0), steps.parts(tokens))[0]


STEPS: dict[str, tuple[Callable[..., Any], Tree, int]] = {
    **{name: step for name, step in SCANNED.items() if "five layers" not in name},  # which stages do not divide
    "dropout": (dropped, (stacks()[0], (stacks()[1], 3)), 2),
    "the largest gradient": (by_largest, stacks(), 2),
    "rematerialized as one": (accumulating(rematerialized_loss, 1), stacks(), 2),
    "forward alone": (forward, stacks(), 4),
    "one microbatch": (accumulating(one_scan_loss, 1, microbatches=1), stacks(), 2),
}
"""Steps with one scan over layers, their arguments, and a number of stages."""


def is_equal(step: Callable[..., Any], arguments: Tree, stages: int) -> bool:
    """Whether the program of all stages, on one device each, computes what the step computes."""
    program = formats.unpack(jax.jit(step), context(), arguments)
    built = build_stacked(program, Options.of(emit="mesh"), stages)
    built.module.operation.verify()
    return verify(program.module, built.module).equal


@pytest.mark.parametrize("name", STEPS)
def test_the_program_equals_the_step(name: str) -> None:
    assert is_equal(*STEPS[name])


def test_phases_add_their_own_gradients_of_an_embedding_that_is_also_the_head() -> None:
    """The gradient of the head is not kept for all microbatches until that of the embedding is there."""
    step, arguments, stages = STEPS["gpt"]
    text = str(build_stacked(formats.unpack(jax.jit(step), context(), arguments), Options.of(emit="mesh"), stages).module)
    rows, width = arguments[0]["embed"].shape
    assert f"tensor<{rows}x{width}xf32>" in text
    assert f"x{rows}x{width}xf32>" not in text


def shardings_of(params: Tree, mesh: jax.sharding.Mesh) -> Tree:
    """Kernels in stacks are sharded along both axes, others along the first one."""
    layers = jax.tree.map(lambda x: P(None, *mesh.axis_names[: x.ndim - 1]), params["layers"])
    specs = {name: P(mesh.axis_names[0]) if np.ndim(leaf) > 1 else P() for name, leaf in params.items() if name != "layers"}
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs | {"layers": layers}, is_leaf=lambda x: isinstance(x, P))


def pipelined(name: str, stages: int, sizes: dict[str, int], **options: Any) -> tuple[Callable[..., Any], Any, Tree]:
    """A step, the same as one program on 8 devices, and its arguments. Stages have meshes of these sizes."""
    step, (params, batch), _ = STEPS[name]
    count = int(np.prod(list(sizes.values())))
    mesh = jax.make_mesh((*sizes.values(),), (*sizes,), axis_types=(AxisType.Auto,) * len(sizes), devices=jax.devices()[:count])
    shardings = shardings_of(params, mesh)
    data = jax.tree.map(lambda leaf: NamedSharding(mesh, P(mesh.axis_names[0]) if np.ndim(leaf) else P()), batch)
    options |= {"in_shardings": (shardings, data), "out_shardings": (shardings, None)}
    return step, meshbridge.pipelined(step, stages=stages, schedule="stacked", **options), (params, batch)


def check_steps(step: Callable[..., Any], function: Any, params: Tree, batch: Tree, count: int = 2) -> Tree:
    """Compares some steps, each with the results of the one before, with one device; returns the last parameters."""
    expected, found = params, params
    for _ in range(count):
        expected, of_step = jax.jit(step)(expected, batch)
        found, of_all = function(found, batch)
        for own, plain in zip(jax.tree.leaves((found, of_all)), jax.tree.leaves((expected, of_step)), strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    return found


@pytest.mark.parametrize(
    ("name", "stages", "sizes"),
    [
        ("gpt", 2, {"fsdp": 2, "tensor": 2}),
        ("gpt", 4, {"tensor": 2}),
        ("dropout", 2, {"fsdp": 4}),
        ("from the last layer", 2, {"fsdp": 2, "tensor": 2}),
        pytest.param("llama", 4, {"fsdp": 2}, marks=pytest.mark.slow),
    ],
)
def test_numbers(name: str, stages: int, sizes: dict[str, int]) -> None:
    step, function, (params, batch) = pipelined(name, stages, sizes)
    found = check_steps(step, function, params, batch)
    kernel = found["layers"]["up"]
    assert kernel.sharding.spec[0] == "stages"
    assert {shard.data.shape[0] for shard in kernel.addressable_shards} == {len(kernel) // stages}


def test_what_is_verified_on_devices() -> None:
    _, function, arguments = pipelined("gpt", 2, {"fsdp": 2, "tensor": 2})
    proof = function.verify(*arguments)
    assert proof.equal, proof.table()
    assert [str(site) for site in proof.fragments] == ["program"]


def test_arguments_may_be_anywhere_and_are_donated() -> None:
    step, function, (params, tokens) = pipelined("gpt", 2, {"fsdp": 4}, donate_argnums=0)
    on_one = jax.device_put(params, jax.devices()[7])
    found = check_steps(step, function, on_one, tokens, count=1)
    np.testing.assert_array_equal(params["embed"], gpt()[0]["embed"])  # numpy's arrays stay
    shards = [shard.data for shard in found["layers"]["up"].addressable_shards]
    function(found, tokens)
    assert all(shard.is_deleted() for shard in shards)


def test_without_shardings_results_are_arguments_of_a_step() -> None:
    step, (params, tokens), stages = STEPS["gpt"]
    check_steps(step, meshbridge.pipelined(step, stages=stages, schedule="stacked"), params, tokens)
    first, _ = meshbridge.pipelined(step, stages=2, schedule="stacked")(params, tokens)
    second, _ = meshbridge.pipelined(step, stages=2, schedule="1f1b")(first, tokens)
    expected, _ = jax.jit(step)(jax.jit(step)(params, tokens)[0], tokens)
    for own, plain in zip(jax.tree.leaves(second), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)


def test_each_stage_computes_its_own_layers_and_permutes_activations() -> None:
    """A device's program reads a stack of two layers, and sends one activation in each tick, forward and backward."""
    _, function, arguments = pipelined("gpt", 2, {"fsdp": 4}, machine="v5p:2x2x2")
    found = function.report(*arguments)
    ticks = MICROBATCHES + 2 - 1
    activation = arguments[1].size // MICROBATCHES * steps.WIDTH * 4
    assert [(each.source, each.reader, each.transfers) for each in found.crossings] == [(0, 1, ticks), (1, 0, ticks)]
    assert all(each.bytes <= ticks * activation for each in found.crossings)
    assert {stage.live_microbatches for stage in found.stages} == {MICROBATCHES}
    assert found.bubble_by_formula == pytest.approx(1 / ticks)
    assert found.seconds is not None
    assert 0 < found.bubble < 1 / ticks  # all stages share what is between the scans
    assert len(found.runs) == 2 * 2 * MICROBATCHES
    assert all(0 <= run.start < run.end <= found.seconds for run in found.runs)
    assert found.headline.startswith("schedule stacked, 2 stages, step ")
    assert "program" in found.table()
    assert "<svg" in found.to_html()


def marked_apart(params: Tree, tokens: Any, stages: int) -> Any:
    """Two stages that are not alike."""
    x = meshbridge.stage("second")(params["embed"][tokens] * 2.0)
    return one_scan_loss({**params, "embed": params["embed"]}, tokens, 1) + (x**2).mean()


def unrolled(params: Tree, tokens: Any, stages: int) -> Any:
    """Layers without a scan."""
    layers = [jax.tree.map(lambda leaf, n=n: leaf[n], params["layers"]) for n in range(len(params["layers"]["up"]))]
    return steps.gpt_loss({**params, "layers": layers}, tokens, 1)


def descending(params: Tree, tokens: Any) -> Tree:
    """A step that updates parameters after each microbatch."""

    def add(params: Tree, part: Any) -> tuple[Tree, None]:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(one_scan_loss)(params, part, 1)), None

    return jax.lax.scan(add, params, steps.parts(tokens))[0]


@pytest.mark.parametrize(
    ("step", "stages", "text"),
    [
        (accumulating(unrolled, 1), 2, r"steps.py:\d+:\d+: error: .*has no scan over layers, which the"),
        (accumulating(marked_apart, 1), 2, r"test_stacked.py:\d+:\d+: error: .*of stage 'second': .*in no scan over layers"),
        (accumulating(one_scan_loss, 1), 3, r"steps.py:\d+:\d+: error: .*runs 4 layers, which 3 stages of equally many layers"),
        (descending, 2, r"steps.py:\d+:\d+: error: .*needs a result of the microbatch before"),
        (accumulating(one_scan_loss, 1), 1, "stages is 1, expected at least 2 for the schedule 'stacked'"),
    ],
)
def test_refuses(step: Callable[..., Any], stages: int, text: str) -> None:
    with pytest.raises(MeshError, match=text) as refused:
        meshbridge.pipelined(step, stages=stages, schedule="stacked", devices=jax.devices()[:stages])(*stacks())
    assert str(refused.value).count("error:") == 1


def test_too_few_devices() -> None:
    step, arguments, _ = STEPS["gpt"]
    with pytest.raises(MeshError, match="4 stages on meshes of 1 devices need 4 devices, there are 3"):
        meshbridge.pipelined(step, stages=4, schedule="stacked", devices=jax.devices()[:3])(*arguments)
