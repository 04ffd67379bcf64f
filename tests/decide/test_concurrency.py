"""Collectives that a compiler joins cost one launch together: small programs gather parameters and reduce gradients."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.cost.objective import COMBINED_BYTES, HIDDEN_SHARE, objective
from meshbridge.decide.concurrency import note_concurrency
from meshbridge.ir.mlir import context
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import Options, build, run
from meshbridge.read import formats
from meshbridge.resharding import Concurrency, Objective
from meshbridge.resharding.objective import HIDDEN_LAUNCH
from tests.decide.graphs import graph_of
from tests.operations.differential import device_mesh

MESH = Mesh("m", (4, 2))
SPLIT, WHOLE = Sharding("m", ((0,), ())), Sharding("m", ((), ()))
TERMS, ELSEWHERE = Sharding("m", ((), ()), (0,), "sum"), Sharding("m", ((), (0,)))


@pytest.mark.parametrize(("source", "target"), [(SPLIT, WHOLE), (TERMS, WHOLE), (TERMS, SPLIT)])
def test_gathers_and_reductions_share_a_launch(source: Sharding, target: Sharding) -> None:
    joining = Objective(launch=1000, combined_bytes=5000).of(Concurrency(4))
    assert joining.price(MESH, source, target, 80, 1) == 80 + 1000 / 4
    assert joining.price(MESH, source, target, 2500, 1) == 2500 + 1000 / 2, "two of them are all that is joined"
    assert joining.price(MESH, source, target, 9000, 1) == 9000 + 1000


def test_an_exchange_starts_by_itself() -> None:
    assert Objective(launch=1000, combined_bytes=5000).of(Concurrency(4)).price(MESH, SPLIT, ELSEWHERE, 80, 1) == 80 + 1000


def test_only_compilers_that_combine_join() -> None:
    for name in ("h100", "v5e"):
        assert objective(CompileTarget.of(name)).combined_bytes == COMBINED_BYTES
    for name in ("cpu8", "neutral", "bytes"):
        assert not objective(CompileTarget.of(name)).combined_bytes


@pytest.mark.parametrize(("source", "target"), [(SPLIT, WHOLE), (TERMS, WHOLE), (TERMS, SPLIT)])
def test_what_products_hide_costs_a_part(source: Sharding, target: Sharding) -> None:
    assert Objective(launch=1000).of(Concurrency(part=0.5)).price(MESH, source, target, 80, 1) == 80 / 2 + 1000 * HIDDEN_LAUNCH


def test_machines_hide_what_they_run_beside_products() -> None:
    hidden = {name: objective(CompileTarget.of(name), hides=True) for name in ("h100", "v5e", "v5p")}
    parts = {name: (each.hidden_gathers, each.hidden_reductions) for name, each in hidden.items()}
    assert parts == {"h100": (HIDDEN_SHARE, HIDDEN_SHARE), "v5e": (HIDDEN_SHARE, 1.0), "v5p": (1.0, 1.0)}
    assert objective(CompileTarget.of("h100")).hidden_gathers == 1.0, "nothing is said of what else the links are for"


def _step(parameters: list[Any], x: Any) -> Any:
    """A gradient step of layers of two products of the same value."""

    def loss(layers: list[Any]) -> Any:
        y = x
        for left, right in layers:
            y = jnp.tanh(y @ left) * (y @ right)
        return jnp.mean(y**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters))


LAYERS, WIDTH, BATCH = 6, 64, 512


def _parameters() -> Any:
    rng = np.random.default_rng(0)
    return [[jnp.asarray(rng.standard_normal((WIDTH, WIDTH)) / 8, jnp.float32) for _ in range(2)] for _ in range(LAYERS)]


def _exported(spec: PartitionSpec) -> export.Exported:
    """The step with the batch along the only axis, and parameters as `spec` says."""
    mesh, parameters = device_mesh((8,)), _parameters()
    shardings = jax.tree.map(lambda _: NamedSharding(mesh, spec), parameters), NamedSharding(mesh, PartitionSpec("a"))
    return export.export(jax.jit(_step, in_shardings=shardings))(parameters, jnp.ones((BATCH, WIDTH)))


def test_early_and_late_tensors_of_a_step() -> None:
    module = formats.unpack(_exported(PartitionSpec(None, "a")), context()).module
    run(build(Options(emit="annotated")).until("legal").passes, module)
    graph = graph_of(module)
    note_concurrency(graph, objective(CompileTarget.of("h100")), is_small=True)
    square = [tensor for tensor in graph.tensors if tensor.shape == (WIDTH, WIDTH)]
    count = 2 * LAYERS
    parameters = [tensor for tensor in square if tensor.boundary and tensor.gathered.combined == count + 1]
    assert len(parameters) == count, "which are gathered with one another, and with the batch if it is"
    assert sum(tensor.reduced.combined >= count for tensor in square) >= count, "gradients are reduced with one another"
    products = [graph.tensors[node.results[0]] for node in graph.nodes if node.rule.is_contraction]
    between = [(tensor.gathered.combined, tensor.reduced.combined) for tensor in products if tensor.shape == (BATCH, WIDTH)]
    assert {gathered for gathered, _ in between} == {1}, "activations wait for one another"
    assert min(reduced for _, reduced in between) == 2, "the two products of a layer do not"


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec(None, "a")])
def test_small_layers_gather_parameters_and_reduce_gradients(spec: PartitionSpec) -> None:
    """With a launch for each, activations were gathered, which are many times as large."""
    exported = _exported(spec)
    report = meshbridge.report(exported, machine="h100")
    assert report.wire_bytes <= 2 * sum(p.nbytes for p in jax.tree.leaves(_parameters()))
    work = json.loads(report.to_json())["work"]
    assert work["device"]["contractions"] <= 1.01 * work["needed"]["contractions"]
    x = jnp.asarray(np.random.default_rng(1).standard_normal((BATCH, WIDTH)), jnp.float32)
    found = meshbridge.compile(exported, machine="h100")(_parameters(), x)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(_step(_parameters(), x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_layers_of_a_loop_are_gathered_and_their_gradients_reduced_beside_products() -> None:
    """A slice of stacked parameters is as early as they are; activations are neither early nor late."""
    mesh = device_mesh((8,))

    def step(stack: Any, x: Any) -> Any:
        def loss(stack: Any) -> Any:
            return jnp.sum(jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, stack)[0])

        return stack - 0.1 * jax.grad(loss)(stack)

    shardings = NamedSharding(mesh, PartitionSpec(None, "a")), NamedSharding(mesh, PartitionSpec("a"))
    shapes = jax.ShapeDtypeStruct((4, WIDTH, WIDTH), "float32"), jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    module = formats.unpack(export.export(jax.jit(step, in_shardings=shardings))(*shapes), context()).module
    run(build(Options(emit="annotated")).until("legal").passes, module)
    graph = graph_of(module)
    note_concurrency(graph, objective(CompileTarget.of("h100"), hides=True), is_small=False)
    products = [node for node in graph.nodes if node.rule.is_contraction]
    read = [graph.tensors[tensor] for node in products for tensor in node.operands if graph.tensors[tensor].shape == (WIDTH,) * 2]
    assert [tensor.gathered.part for tensor in read] == [HIDDEN_SHARE] * 2, "forward and backward"
    made = [graph.tensors[node.results[0]] for node in products]
    assert {(tensor.shape, tensor.reduced.part) for tensor in made} == {((WIDTH, WIDTH), HIDDEN_SHARE), ((BATCH, WIDTH), 1.0)}
