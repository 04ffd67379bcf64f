"""What `meshbridge.jit` gives, called within functions that JAX traces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MeshError
from meshbridge.jitted.function import Jitted
from tests.jitted.programs import W, X, check_same, on_one_device


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


@pytest.fixture
def partitioned(mesh: Mesh) -> Jitted[[Any, Any], jax.Array]:
    return meshbridge.jit(product, in_shardings=(NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))))


def loss(function: Any, w: Any) -> Any:
    return (function(X, w) ** 2).sum()


def derivative(function: Any, w: Any) -> Any:
    return jax.grad(lambda w: loss(function, w))(w)


TRANSFORMED = {
    "jit": lambda function, w: jax.jit(lambda w: function(X * 2, w) + 1)(w),
    "scan": lambda function, w: jax.lax.scan(lambda carry, _: (carry + function(X, w).sum(), None), 0.0, None, length=3)[0],
    "cond": lambda function, w: jax.jit(lambda w: jax.lax.cond(w[0, 0] > 0, lambda: function(X, w), lambda: function(-X, w)))(w),
    "grad": derivative,
    "jit of grad": lambda function, w: jax.jit(lambda w: derivative(function, w))(w),
    "value_and_grad": lambda function, w: jax.value_and_grad(lambda w: loss(function, w))(w),
    "vjp": lambda function, w: jax.vjp(function, X, w)[1](jnp.ones((16, 64))),
    "checkpoint": lambda function, w: derivative(jax.checkpoint(function), w),
    "grad of grad": lambda function, w: jax.grad(lambda w: (derivative(function, w) ** 2).sum())(w),
    "constants alone": lambda function, w: jax.jit(lambda shift: function(X, W) + shift)(1.0),
}


@pytest.mark.parametrize("case", TRANSFORMED)
def test_transformed(partitioned: Any, case: str) -> None:
    check_same(TRANSFORMED[case](partitioned, W), TRANSFORMED[case](product, W))


def test_calls_within_are_partitioned(partitioned: Any) -> None:
    text = jax.jit(lambda w: derivative(partitioned, w)).lower(W).compile().as_text()
    assert "all-reduce" in text
    lowered = jax.jit(lambda w: derivative(partitioned, w)).lower(W).as_text()
    assert lowered.count("sdy.manual_computation") == 2  # the function and its derivative


def test_a_function_without_arguments(mesh: Mesh) -> None:
    made = meshbridge.jit(lambda: jax.lax.with_sharding_constraint(jnp.arange(16.0), NamedSharding(mesh, P("data"))))
    check_same(jax.jit(lambda shift: made() + shift)(1.0), on_one_device(lambda: jnp.arange(16.0) + 1))


def test_static_arguments(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    jitted = meshbridge.jit(lambda x, n: x * n, static_argnums=1, in_shardings=rows)
    check_same(jax.jit(lambda x: jitted(x, 2) + jitted(x, 3))(X), on_one_device(lambda x: x * 5, X))
    with pytest.raises(MeshError, match="position 1 is a list, which cannot be hashed"):
        jax.jit(lambda x: jitted(x, [2]))(X)


def test_one_device_needs_no_partitioning() -> None:
    jitted = meshbridge.jit(lambda x: jnp.sin(x) * 2)
    check_same(jax.vmap(jax.grad(lambda x: jitted(x).sum()))(X), jax.vmap(jax.grad(lambda x: (jnp.sin(x) * 2).sum()))(X))


def test_explicit_meshes() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", None)).sum(axis=0)

    with jax.set_mesh(mesh):
        x, w = jax.device_put(X, P("data", "model")), jax.device_put(W, P("model", None))

        def gradient(function: Any) -> Any:
            return jax.jit(jax.grad(lambda w: (function(x, w) ** 2).sum()))(w)

        found, expected = gradient(meshbridge.jit(function)), gradient(function)
        assert jax.typeof(found) == jax.typeof(expected)
        check_same(found, expected)


def test_within_shard_map_nothing_is_left_to_partition(mesh: Mesh) -> None:
    doubled = meshbridge.jit(lambda x: x * 2)
    mapped = jax.shard_map(lambda x: doubled(x) + 1, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    check_same(jax.jit(mapped)(X), on_one_device(lambda x: x * 2 + 1, X))


def test_batching_names_a_way_out(partitioned: Any) -> None:
    with pytest.raises(MeshError, match=r"error: product is partitioned, and cannot be batched any more\n  hint: .*jax\.vmap"):
        jax.vmap(partitioned, in_axes=(0, None))(np.stack([X, X]), W)
    batched = meshbridge.jit(jax.vmap(product, in_axes=(0, None)))
    check_same(batched(np.stack([X, X]), W), on_one_device(jax.vmap(product, in_axes=(0, None)), np.stack([X, X]), W))


def test_forward_mode_is_refused_by_jax(partitioned: Any) -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda w: partitioned(X, w), (W,), (W,))


def test_within_another_it_is_partitioned_with_it(partitioned: Any, mesh: Mesh) -> None:
    """Also in ways that a call of the partitioned function knows nothing of."""

    def outer(function: Any, w: jax.Array) -> Any:
        tangent = jax.jvp(lambda w: function(X, w), (w,), (w,))[1]
        return jax.vmap(function, in_axes=(0, None))(jnp.stack([X, X]), w), derivative(function, w), tangent

    jitted = meshbridge.jit(lambda w: outer(partitioned, w), in_shardings=NamedSharding(mesh, P("model")))
    check_same(jitted(W), on_one_device(lambda w: outer(product, w), W))
    assert jitted.partitioned_text(W).count("sdy.manual_computation") == 1


def test_what_is_traced_as_a_whole_is_not_called_elsewhere(partitioned: Any, mesh: Mesh) -> None:
    """JAX keeps one trace of a function that is both partitioned and called, were it not told that they differ."""
    inner = jax.jit(lambda w: partitioned(X, w) * 2)
    whole = meshbridge.jit(lambda w: inner(w) + 1, in_shardings=NamedSharding(mesh, P("model")))
    assert whole.partitioned_text(W).count("sdy.manual_computation") == 1
    assert meshbridge.partition(inner, W).mlir_module().count("sdy.manual_computation") == 1
    assert "sdy.manual_computation" in inner.lower(W).as_text()
    check_same(inner(W), on_one_device(lambda w: product(X, w) * 2, W))
    check_same(whole(W), on_one_device(lambda w: product(X, w) * 2 + 1, W))
