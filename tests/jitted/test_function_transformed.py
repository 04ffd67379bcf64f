"""What `meshbridge.jit` gives, called within functions that JAX traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.jitted.function import Jitted
from tests.jitted.programs import W, X, check_same, on_one_device, plans


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
    "vmap": lambda function, w: jax.vmap(function, in_axes=(0, None))(np.stack([X, 2 * X]), w),
    "jvp": lambda function, w: jax.jvp(lambda w: function(X, w), (w,), (2 * w,)),
    "linearize": lambda function, w: jax.linearize(lambda w: function(X, w), w)[1](w),
    "linear_transpose": lambda function, w: jax.linear_transpose(jax.linearize(lambda w: function(X, w), w)[1], w)(
        jnp.ones((16, 64))
    ),
    "jacfwd": lambda function, w: jax.jacfwd(lambda x: function(x, w[:, :8]).sum(1))(X[:2, :]),
    "hessian": lambda function, w: jax.hessian(lambda x: function(x, w[:, :8]).sum())(X[:2, :3].repeat(11, 1)[:, :32]),
    "checkify": lambda function, w: checkify.checkify(function, errors=checkify.float_checks)(X, w)[1],
    "constants alone": lambda function, w: jax.jit(lambda shift: function(X, W) + shift)(1.0),
}


@pytest.mark.parametrize("case", TRANSFORMED)
def test_transformed(partitioned: Any, case: str) -> None:
    check_same(TRANSFORMED[case](partitioned, W), TRANSFORMED[case](product, W))


def test_calls_within_are_partitioned(partitioned: Any) -> None:
    with plans() as names:  # one for the function and its derivative
        assert "all-reduce" in jax.jit(lambda w: derivative(partitioned, w)).lower(W).compile().as_text()
    assert len(names) == 1


def test_a_function_without_arguments(mesh: Mesh) -> None:
    made = meshbridge.jit(lambda: jax.lax.with_sharding_constraint(jnp.arange(16.0), NamedSharding(mesh, P("data"))))
    check_same(jax.jit(lambda shift: made() + shift)(1.0), on_one_device(lambda: jnp.arange(16.0) + 1))


def test_static_arguments(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    jitted = meshbridge.jit(lambda x, n: x * n, static_argnums=1, in_shardings=rows)
    check_same(jax.jit(lambda x: jitted(x, 2) + jitted(x, 3))(X), on_one_device(lambda x: x * 5, X))
    with pytest.raises((TypeError, ValueError), match=r"Non-hashable static arguments|unsupported operand"):
        jax.jit(lambda x: jitted(x, [2]))(X)


def test_one_device_needs_no_partitioning() -> None:
    jitted = meshbridge.jit(lambda x: jnp.sin(x) * 2)
    check_same(jax.vmap(jax.grad(lambda x: jitted(x).sum()))(X), jax.vmap(jax.grad(lambda x: (jnp.sin(x) * 2).sum()))(X))


def test_a_helper_under_a_mesh_that_is_set(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        made = jax.eval_shape(lambda key: meshbridge.jit(lambda key: jax.random.normal(key, (4,)))(key), jax.random.key(0))
    assert made.shape == (4,)


def test_arguments_say_how_they_are_sharded_where_jax_differentiates(mesh: Mesh) -> None:
    x, w = jax.device_put(X, NamedSharding(mesh, P("data"))), jax.device_put(W, NamedSharding(mesh, P(None, "model")))
    summed = meshbridge.jit(lambda x, w: product(x, w).sum())
    for case in (
        lambda: jax.grad(summed, 1)(x, w),
        lambda: jax.vjp(summed, x, w)[1](jnp.float32(1)),
        lambda: jax.lax.scan(lambda carry, _: (carry + summed(x, w), None), jnp.float32(0), None, length=2),
    ):
        with plans() as names:
            case()
        assert names


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


def test_within_another_it_is_partitioned_with_it(partitioned: Any, mesh: Mesh) -> None:
    """Also in ways that a call of the partitioned function knows nothing of."""

    def outer(function: Any, w: jax.Array) -> Any:
        tangent = jax.jvp(lambda w: function(X, w), (w,), (w,))[1]
        return jax.vmap(function, in_axes=(0, None))(jnp.stack([X, X]), w), derivative(function, w), tangent

    jitted = meshbridge.jit(lambda w: outer(partitioned, w), in_shardings=NamedSharding(mesh, P("model")))
    check_same(jitted(W), on_one_device(lambda w: outer(product, w), W))
    assert jitted.partitioned_text(W).count("sdy.manual_computation") == 1


def test_what_is_traced_as_a_whole_is_not_called_elsewhere(partitioned: Any, mesh: Mesh) -> None:
    """JAX keeps one trace of a function that is both partitioned and called."""
    inner = jax.jit(lambda w: partitioned(X, w) * 2)
    whole = meshbridge.jit(lambda w: inner(w) + 1, in_shardings=NamedSharding(mesh, P("model")))
    assert whole.partitioned_text(W).count("sdy.manual_computation") == 1
    assert meshbridge.partition(inner, W).mlir_module().count("sdy.manual_computation") == 1
    check_same(inner(W), on_one_device(lambda w: product(X, w) * 2, W))
    check_same(whole(W), on_one_device(lambda w: product(X, w) * 2 + 1, W))


@pytest.mark.parametrize("inner", [jax.jit, meshbridge.jit])
@pytest.mark.parametrize(
    "transform",
    [jax.grad, jax.vmap, jax.value_and_grad, jax.hessian, jax.checkpoint, lambda f: functools.wraps(f)(lambda x: f(x) + 100)],
)
def test_what_wraps_a_jitted_function_is_another_function(
    transform: Callable[..., Any], inner: Callable[..., Any], mesh: Mesh
) -> None:
    """It has the attributes of the function that it wraps."""

    def cubes(x: jax.Array) -> jax.Array:
        return (x**3).sum()

    x = X[0]
    check_same(meshbridge.jit(transform(inner(cubes)))(jax.device_put(x, NamedSharding(mesh, P("data")))), transform(cubes)(x))


def test_traced_within_a_shard_map_that_checks_nothing(mesh: Mesh) -> None:
    spec = P("data")
    mapped = jax.shard_map(meshbridge.jit(lambda x: x * 2), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    jitted = meshbridge.jit(mapped)
    assert jitted.trace(X).lower().compile()(X).shape == X.shape
    check_same(jitted(X), on_one_device(lambda x: x * 2, X))
