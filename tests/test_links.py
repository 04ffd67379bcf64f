"""Plans for machines whose links differ: less goes along slow ones, or while it is small, and the step is no slower."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import resharding
from meshbridge.cost.objective import objective
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.steps import AllGather
from testdata.realistic.catalogue import build as build_realistic
from tests.operations.differential import device_mesh

MESH = Mesh("mesh", (2, 4), ("data", "model"))
NODES, ACROSS = "h100:1x4x2", "model=infiniband"
"""Four nodes of two devices, between which the axis `model` is; an axis of a program is mostly between devices of one node."""


def test_how_much_slower_a_network_is() -> None:
    rates = objective("h100:1x2x4", MESH).rates
    assert rates is not None
    inside, between, both = (rates.gathering(frozenset(axes)).bytes for axes in (("model",), ("data",), ("data", "model")))
    assert inside == pytest.approx(1.0)
    assert between == pytest.approx(450 * 0.82 / (50 * 0.9))
    assert inside < both < between  # most of it goes within a node
    assert rates.exchanging(frozenset(("data", "model"))).bytes > both  # of an exchange half leaves the node
    assert rates.gathering(frozenset(("data",))).launch > 1.0


def test_prices_are_of_the_axes_that_a_value_goes_along() -> None:
    slow = objective(NODES, MESH, ACROSS)
    whole, along_data, along_model = Sharding("mesh", ((), ())), Sharding("mesh", ((0,), ())), Sharding("mesh", ((1,), ()))
    price = [resharding.cost((1024, 1024), "f32", MESH, source, whole, slow) for source in (along_data, along_model)]
    plain = [resharding.cost((1024, 1024), "f32", MESH, source, whole, slow.plain) for source in (along_data, along_model)]
    assert price[0] == pytest.approx(plain[0], rel=0.1)
    assert price[1] > 4 * plain[1]
    moved = resharding.cost((1024, 1024), "f32", MESH, along_model, Sharding("mesh", ((), (1,))), slow)
    assert moved > 2 * resharding.cost((1024, 1024), "f32", MESH, along_model, Sharding("mesh", ((), (1,))), slow.plain)


@pytest.mark.parametrize(("layout", "first"), [("model=infiniband", 1), ("data=infiniband", 0)])
def test_slow_axes_are_gathered_along_first(layout: str, first: int) -> None:
    machine = NODES if first else "h100:1x2x4"
    options = replace(objective(machine, MESH, layout).planning_on(MESH), scratch=0)
    plan = resharding.plan((512, 512), "f32", MESH, Sharding("mesh", ((0,), (1,))), Sharding("mesh", ((), ())), options)
    gathers = [step for step in plan.steps if isinstance(step, AllGather)]
    assert [{digit.axis for digit in step.digits} for step in gathers] == [{first}, {1 - first}]


@pytest.mark.parametrize("name", ["llama4_fsdp_tp", "gpt8_scan_fsdp_tp"])
def test_the_step_is_faster_than_by_prices_of_a_node(name: str) -> None:
    exported = build_realistic(name, "inputs", 8).export_for("cuda")
    aware = meshbridge.report(exported, machine=NODES, layout=ACROSS)
    assert aware.seconds is not None
    for machine in ("h100", "bytes"):
        there = meshbridge.report(meshbridge.partition(exported, machine=machine, emit="mesh"), machine=NODES, layout=ACROSS)
        assert there.seconds is not None
        assert aware.seconds < 0.85 * there.seconds


def test_numbers_stay() -> None:
    mesh = device_mesh((2, 4))

    def step(x: jax.Array, v: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jnp.tanh(x @ v)
        return jax.nn.softmax(hidden @ w, axis=-1), v.T @ x.T

    specs = (P("a", None), P("a", "b"), P("b", "a"))
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((32, 64), (64, 96), (96, 48))]
    jitted = jax.jit(step, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs))
    partitioned = meshbridge.partition(export.export(jitted)(*shapes), machine=NODES, layout="b=infiniband")
    values = [np.random.default_rng(n).standard_normal(each.shape, "float32") / 8 for n, each in enumerate(shapes)]
    placed = [jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in zip(values, specs, strict=True)]
    x, v, w = values
    logits = np.tanh(x @ v) @ w
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    found = jax.jit(partitioned.call)(*placed)
    np.testing.assert_allclose(found[0], expected / expected.sum(-1, keepdims=True), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], v.T @ x.T, rtol=2e-4, atol=1e-4)
