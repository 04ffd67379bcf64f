"""Work that the user wants shared is shared, however small the program and however long a collective takes to start."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from tests.operations.differential import device_mesh

MACHINES = ("neutral", "v5e", "h100")


def _layers(parameters: list[Any], x: Any) -> Any:
    for weights in parameters[:-1]:
        x = jnp.tanh(x @ weights)
    return x @ parameters[-1]


def _perceptron(parameters: list[Any], x: Any) -> Any:
    """A gradient step of three layers."""
    gradients = jax.grad(lambda p: jnp.mean(_layers(p, x) ** 2))(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


def _recurrent(parameters: list[Any], xs: Any) -> Any:
    """A gradient step of a cell whose gates are one product of several parameters: a loop adds up slices of its gradient."""

    def loss(parts: list[Any]) -> Any:
        def cell(state: Any, x: Any) -> Any:
            gates = jnp.concatenate([state, x], 1) @ jnp.concatenate(parts, 1)
            opened, new = jnp.split(gates, 2, axis=1)
            return state + jax.nn.sigmoid(opened) * jnp.tanh(new), None

        return jnp.mean(lax.scan(cell, jnp.zeros((xs.shape[1], 16)), xs)[0] ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters))


def _orthogonalised(parameters: list[Any], x: Any) -> Any:
    """A gradient step that makes each gradient orthogonal, as Muon does, by products that no sharding of the user's speaks of."""

    def orthogonal(g: Any) -> Any:
        g = g / (jnp.linalg.norm(g) + 1e-3)
        for _ in range(3):
            g = 1.5 * g - 0.5 * (g @ g.T) @ g
        return g

    gradients = jax.grad(lambda p: jnp.mean(_layers(p, x) ** 2))(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * orthogonal(g), parameters, gradients)


def _arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape) / 4, jnp.float32) for shape in shapes]


PROGRAMS = {
    "perceptron": (_perceptron, _arrays((16, 64), (64, 32), (32, 8)), _arrays((64, 16))[0], ("a",)),
    "recurrent": (_recurrent, _arrays((32, 16), (32, 16)), _arrays((12, 64, 16))[0], (None, "a")),
}


@pytest.mark.parametrize("size", [(), (0,)])
def test_products_of_nothing_have_a_plan(size: tuple[int, ...]) -> None:
    """A product of scalars, and one of empty vectors, compute nothing that could be repeated."""
    empty = jnp.zeros(size)
    exported = export.export(jax.jit(jnp.dot, in_shardings=NamedSharding(device_mesh((8,)), PartitionSpec())))(empty, empty)
    assert meshbridge.compile(exported)(empty, empty) == 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_steps_are_shared(name: str, machine: str) -> None:
    step, parameters, batch, along = PROGRAMS[name]
    mesh = device_mesh((8,))
    shardings = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(*along))
    exported = export.export(jax.jit(step, in_shardings=shardings))(parameters, batch)
    report = meshbridge.report(exported, machine=machine)
    work = json.loads(report.to_json())["work"]
    assert work["device"]["contractions"] <= 1.1 * work["needed"]["contractions"]
    assert {collective.executions for collective in report.collectives} == {1}, "gradients are reduced once, after the loop"
    found = meshbridge.compile(exported, machine=machine)(parameters, batch)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(step(parameters, batch)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("machine", MACHINES)
def test_work_left_to_every_device_stays_there(machine: str) -> None:
    """Sharing products of replicated gradients takes collectives that wait for one another: longer than to compute them."""
    parameters, x = _arrays((32, 64), (64, 64), (64, 16)), _arrays((256, 32))[0]
    mesh = device_mesh((8,))
    shardings = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("a"))
    exported = export.export(jax.jit(_orthogonalised, in_shardings=shardings))(parameters, x)
    report = meshbridge.report(exported, machine=machine)
    assert report.bytes_by_kind().keys() == {"all_reduce"}
    gradients = sum(p.nbytes for p in parameters)
    assert report.wire_bytes <= 2 * gradients, "what the gradients take alone"
    found = meshbridge.compile(exported, machine=machine)(parameters, x)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(_orthogonalised(parameters, x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
