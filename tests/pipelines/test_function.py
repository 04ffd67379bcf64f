"""Pipelines on 8 virtual devices: numbers equal those of one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError
from tests.pipelines.steps import STEPS, accumulating, clipped, gpt, gpt_loss, mlp, mlp_loss

Tree = Any


def stage_mesh(groups: int) -> jax.sharding.Mesh:
    """The mesh of the first of so many stages on 8 devices."""
    size = 8 // groups
    return jax.make_mesh((size,), ("fsdp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size])


def pipelined(step: Any, params: Tree, groups: int, **options: Any) -> Any:
    """A step whose parameters and batch are sharded along the first dimension, as a pipeline."""
    mesh = stage_mesh(groups)
    rows = NamedSharding(mesh, P("fsdp"))
    shardings = jax.tree.map(lambda leaf: rows if leaf.ndim > 1 else NamedSharding(mesh, P()), params)
    return meshbridge.pipelined(step, stages=groups, in_shardings=(shardings, rows), out_shardings=(shardings, None), **options)


def check(step: Any, function: Any, params: Tree, batch: Tree, steps: int = 2) -> Tree:
    """Trains some steps, and compares with one device."""
    expected, found = params, params
    for _ in range(steps):
        expected, expected_loss = jax.jit(step)(expected, batch)
        found, loss = function(found, batch)
        for own, plain in zip(jax.tree.leaves((found, loss)), jax.tree.leaves((expected, expected_loss)), strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    return found


@pytest.mark.parametrize(
    ("schedule", "groups", "chunks"),
    [("1f1b", 2, 2), ("gpipe", 4, 4), ("interleaved", 2, 4), ("zero-bubble", 2, 2)],
)
def test_numbers_under_each_schedule(schedule: str, groups: int, chunks: int) -> None:
    step = accumulating(mlp_loss, chunks, update=clipped)
    params, batch = mlp()
    found = check(step, pipelined(step, params, groups, schedule=schedule), params, batch)
    first, last = (found["layers"][layer]["w"].sharding.device_set for layer in (0, 3 if chunks == groups else 1))
    assert first == set(jax.devices()[: 8 // groups])
    assert last == set(jax.devices()[8 - 8 // groups :])


def test_a_transformer_with_tied_embeddings() -> None:
    step = accumulating(gpt_loss, 2)
    params, tokens = gpt(2)
    check(step, pipelined(step, params, 2), params, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture of experts", "encoder and decoder", "dropout", "loss scaling", "clipping"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_families_with_two_axes_in_each_stage(name: str, schedule: str) -> None:
    """Rows are split along one axis, and matrices along another one. Numbers are near, and the proof is exact."""
    step, (params, batch), stages = STEPS[name]
    size = 8 // stages
    devices = jax.devices()[:size]
    mesh = jax.make_mesh((2, size // 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)

    def last_dimension(leaf: Any) -> NamedSharding:
        shape = np.shape(leaf)
        return NamedSharding(mesh, P(*[None] * (len(shape) - 1), "model") if len(shape) > 1 else P())

    shardings = jax.tree.map(last_dimension, params)
    rows = jax.tree.map(lambda leaf: NamedSharding(mesh, P("data") if np.ndim(leaf) else P()), batch)
    options = {"in_shardings": (shardings, rows), "out_shardings": (shardings, None)}
    function = meshbridge.pipelined(step, stages=stages, schedule=schedule, **options)
    expected, found = jax.jit(step)(params, batch), function(params, batch)
    for own, plain in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
    proof = function.verify(params, batch)
    assert proof.equal, proof.table()


def test_donated_arguments_are_overwritten() -> None:
    step = accumulating(mlp_loss, 2)
    params, batch = mlp()
    function = pipelined(step, params, 2, donate_argnums=0)
    found, _ = function(params, batch)
    np.testing.assert_array_equal(params["layers"][0]["w"], mlp()[0]["layers"][0]["w"])  # numpy's arrays stay
    again, _ = function(found, batch)
    assert found["layers"][0]["w"].is_deleted()
    assert not again["layers"][0]["w"].is_deleted()


def test_too_few_devices_and_meshes_that_overlap() -> None:
    step = accumulating(mlp_loss, 4)
    params, batch = mlp()
    devices = jax.devices()
    for wrong, text in (
        (devices[:6], "4 stages on meshes of 2 devices need 8 devices, there are 6"),
        (devices[:4] * 2, "the meshes of stages overlap: device 0 is named twice"),
    ):
        with pytest.raises(MeshError, match=text):
            pipelined(step, params, 4, devices=wrong)(params, batch)


def test_arguments_of_another_kind() -> None:
    step = accumulating(mlp_loss, 2)
    function = pipelined(step, mlp()[0], 2)
    with pytest.raises(MeshError, match="no loop of microbatches, nor marks stages"):
        meshbridge.pipelined(lambda x: x + 1, stages=2)(np.ones(4))
    with pytest.raises(MeshError, match="stages is 0, expected at least 1"):
        meshbridge.pipelined(step, stages=0)(*mlp())
    for wrong, text in (
        ({"stages": 2, "devices": []}, "expected devices, found none"),
        ({"stages": 2.5}, "stages is 2.5, expected a whole number"),
        ({"stages": 2, "schedule": "zero_bubble"}, "schedule is 'zero_bubble', expected one of gpipe"),
    ):
        with pytest.raises(MeshError, match=text):
            meshbridge.pipelined(step, **wrong)
    with pytest.raises(MeshError, match="expected a step, found a pipeline"):
        meshbridge.pipelined(function, stages=2)
    with pytest.raises(MeshError, match="a pipeline is called by a function that JAX traces"):
        jax.jit(function)(*mlp())
    assert function.lower(*mlp()).plan.schedule.name == "1f1b"


def test_a_callback_in_the_step() -> None:
    def loss(params: Tree, batch: Tree, stages: int) -> Any:
        jax.debug.print("{}", batch[0].sum())
        return mlp_loss(params, batch, stages)

    with pytest.raises(MeshError, match=r"test_function.py:\d+:\d+: error: jax.export cannot export the function"):
        meshbridge.pipelined(accumulating(loss, 2), stages=2)(*mlp())


def test_static_arguments_and_numbers() -> None:
    """A step is cut for each value of what is no array."""

    def scaled_step(params: Tree, batch: Tree, kind: str, rate: float) -> Tree:
        step = accumulating(mlp_loss, 2, update=lambda p, g: jax.tree.map(lambda p, g: p - rate * g, p, g))
        updated, (loss, _) = step(params, batch)
        return updated, -loss if kind == "negative" else loss

    function = meshbridge.pipelined(scaled_step, stages=2, static_argnames="kind")
    by_position = meshbridge.pipelined(scaled_step, stages=2, static_argnums=2)
    params, batch = mlp()
    for kind, rate in (("plain", 0.1), ("negative", 0.1), ("negative", 0.2)):
        found = function(params, batch, kind=kind, rate=rate) if rate == 0.1 else by_position(params, batch, kind, rate)
        expected = jax.jit(scaled_step, static_argnames=("kind",))(params, batch, kind=kind, rate=rate)
        for own, plain in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)


def test_shardings_of_arguments_count() -> None:
    mesh = stage_mesh(2)
    params, batch = mlp()
    rows = NamedSharding(mesh, P("fsdp"))
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, rows if leaf.ndim > 1 else NamedSharding(mesh, P())), (params, batch))
    function = meshbridge.pipelined(accumulating(mlp_loss, 2), stages=2)
    assert function.lower(*placed).mesh_size == 4
    assert function.lower(params, batch).mesh_size == 1
    check(accumulating(mlp_loss, 2), function, *placed)


def test_uneven_shards() -> None:
    """The rows of a microbatch are not divisible by the devices of a stage."""
    mesh = stage_mesh(2)
    params, (x, y) = mlp()
    batch = (np.concatenate([x, x, x])[:20], np.concatenate([y, y, y])[:20])

    def loss(params: Tree, batch: Tree, stages: int) -> Any:
        rows = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("fsdp"))), batch)
        return mlp_loss(params, rows, stages)

    step = accumulating(loss, 2)
    check(accumulating(mlp_loss, 2), meshbridge.pipelined(step, stages=2), params, batch)
