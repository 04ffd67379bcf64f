"""Functions that know nothing of meshbridge, partitioned by it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MeshError
from tests.jitted.programs import W, X, check_same, on_one_device, plans


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def on(mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """Arrays that are committed to the devices of a mesh."""
    return jax.device_put(X, NamedSharding(mesh, P("data"))), jax.device_put(W, NamedSharding(mesh, P(None, "model")))


def test_functions_that_were_jitted_before(mesh: Mesh) -> None:
    jitted = jax.jit(product)
    check_same(jitted(*on(mesh)), on_one_device(product, X, W))  # JAX keeps what it compiles here apart
    with meshbridge.patch(machine="bytes") as planned:
        check_same(jitted(*on(mesh)), on_one_device(product, X, W))
    assert [each.name for each in planned] == ["jit(product)"]
    assert "sdy.manual_computation" in planned[0].text()
    assert planned[0].report().machine == "bytes"
    with plans() as names:
        check_same(jitted(*on(mesh)), on_one_device(product, X, W))
    assert not names


def test_what_jax_compiles_by_itself(mesh: Mesh) -> None:
    x, w = on(mesh)
    with meshbridge.patch() as planned:
        found = jax.lax.scan(lambda carry, _: (carry + product(x, w).sum(), None), jnp.float32(0), None, length=2)[0]
        gradient = jax.grad(lambda w: product(x, w).sum())(w)
    check_same(found, on_one_device(lambda: 2 * product(X, W).sum()))
    check_same(gradient, on_one_device(jax.grad(lambda w: product(X, w).sum()), W))
    assert "jit(scan)" in [each.name for each in planned]


def test_functions_that_are_left_to_xla(mesh: Mesh) -> None:
    """By name. What JAX has compiled so is not taken elsewhere, where they are partitioned."""

    def train(x: jax.Array, w: jax.Array) -> jax.Array:
        return product(x, w)

    def evaluate(x: jax.Array, w: jax.Array) -> jax.Array:
        return product(x, w).sum()

    functions = (jax.jit(train), jax.jit(evaluate))
    for left, names in ((["eval*"], ["jit(train)"]), (["train"], ["jit(evaluate)"]), ([], ["jit(train)", "jit(evaluate)"])):
        with meshbridge.patch(leave_to_xla=left) as planned:
            for function in functions:
                check_same(function(*on(mesh)), on_one_device(function, X, W))
        assert [each.name for each in planned] == names
    with meshbridge.patch(leave_to_xla=["*"]) as planned:
        meshbridge.jit(train)(*on(mesh))
    assert [each.name for each in planned] == ["jit(train)"]


def test_one_device_is_left_to_jax() -> None:
    with meshbridge.patch() as planned:
        check_same(jax.jit(product)(X, W), on_one_device(product, X, W))
    assert not planned


def test_arrays_that_are_only_moved_are_left_to_jax(mesh: Mesh) -> None:
    """Also to the same devices in another order, which no program of ours names beside the first."""
    backwards = Mesh(mesh.devices.reshape(8)[::-1], ("back",))
    with meshbridge.patch() as planned:
        found = jax.device_put(on(mesh)[0], NamedSharding(backwards, P("back")))
    np.testing.assert_array_equal(found, X)
    assert not planned


def test_from_now_on(mesh: Mesh) -> None:
    from meshbridge.runtime import lowerings

    meshbridge.install()
    try:
        with plans() as names:
            check_same(jax.jit(product)(*on(mesh)), on_one_device(product, X, W))
        assert len(names) == 1
        with meshbridge.patch(machine="h100"):
            pass
        assert lowerings.everywhere() is not None
    finally:
        lowerings.set_everywhere(None)


def test_options_that_cannot_have_their_value() -> None:
    for function in (meshbridge.install, meshbridge.patch):
        with pytest.raises(MeshError, match="expected one of"):
            function(collectives="maybe")  # type: ignore[arg-type,operator]


def test_names_that_are_one_string() -> None:
    with pytest.raises(MeshError, match="leave_to_xla: expected a sequence of names of functions, found the string 'evaluate'"):
        meshbridge.patch(leave_to_xla="evaluate")


def test_in_the_place_of_jax_jit(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "jit", meshbridge.jit)
    rows = NamedSharding(mesh, P("data"))
    check_same(jax.jit(product)(X, W), np.tanh(X @ W))
    check_same(jax.jit(product, in_shardings=(rows, None), donate_argnums=())(X, W), np.tanh(X @ W))

    @jax.jit
    def loss(w: Any) -> Any:
        return jax.jit(product)(X, w).sum()

    assert jax.grad(loss)(W).shape == W.shape
