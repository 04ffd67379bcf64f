"""The boundary of a stage under JAX's transformations, and in exported programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import meshbridge
from meshbridge.ir.mlir import MeshError, context, walk_all
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.read import formats

FORWARD, BACKWARD = Marker("b", "forward"), Marker("b", "backward")


def squares(x: jax.Array) -> jax.Array:
    """The sum of squares, beyond a boundary."""
    total: jax.Array = (meshbridge.stage("b")({"x": x, "count": 3})["x"] ** 2).sum()
    return total


def markers(function: object, *arguments: object) -> list[Marker]:
    """The boundaries in a program."""
    module = formats.unpack(function, context(), arguments).module
    return [marker for op in walk_all(module) if (marker := marker_of(op)) is not None]


def test_it_changes_no_numbers() -> None:
    x = jnp.arange(3.0)
    plain = lambda x: (x**2).sum()  # noqa: E731
    assert squares(x) == plain(x)
    assert jax.jvp(squares, (x,), (x,)) == jax.jvp(plain, (x,), (x,))
    for transform in (jax.grad, jax.hessian, jax.jacrev, jax.jacfwd, lambda f: jax.grad(jax.checkpoint(f))):
        np.testing.assert_array_equal(transform(squares)(x), transform(plain)(x))
    batch = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.vmap(jax.grad(squares))(batch), 2 * batch)
    np.testing.assert_array_equal(jax.vmap(squares, in_axes=1)(batch), (batch**2).sum(0))
    scanned = lambda x: jax.lax.scan(lambda x, _: (2 * meshbridge.stage("b")(x), None), x, length=3)[0].sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(scanned)(x), [8, 8, 8])


def test_cotangents_pass_it_backward() -> None:
    x = jnp.arange(3.0)
    assert markers(jax.jit(squares), x) == [FORWARD]
    assert markers(jax.jit(jax.grad(squares)), x) == [FORWARD, BACKWARD]
    assert markers(jax.jit(jax.grad(jax.checkpoint(squares))), x)[-1] == BACKWARD
    assert markers(jax.jit(lambda x: jax.jvp(squares, (x,), (x,))), x) == [FORWARD, FORWARD]


def test_keys_and_integers_pass_it() -> None:
    key, number = jax.jit(meshbridge.stage("b"))((jax.random.key(0), 3))
    assert number == 3
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(0)))
    assert meshbridge.stage("b")(()) == ()


def test_exported_programs_keep_it() -> None:
    x = jnp.arange(3.0)
    exported = export.export(jax.jit(jax.grad(squares)))(x)
    again = export.deserialize(exported.serialize())
    assert markers(again) == [FORWARD, BACKWARD]
    np.testing.assert_array_equal(again.call(x), 2 * x)


def test_partitioned_programs_keep_it() -> None:
    exported = export.export(jax.jit(squares))(jnp.arange(3.0))
    assert markers(meshbridge.partition(exported)) == [FORWARD]


def test_a_stage_has_a_name() -> None:
    with pytest.raises(MeshError, match="expected the name of a stage, found 3"):
        meshbridge.stage(3)  # type: ignore[arg-type]
