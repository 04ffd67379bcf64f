"""Programs that need values whole, and what follows from them element by element: one gather of both."""

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
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.verify.verdict import verify


def activated(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ w, x @ jax.nn.gelu(w)


def narrowed(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ w, (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)


def masked(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ w, x @ jnp.where(w > 0.5, 2 * w, 0)


PROGRAMS: dict[str, Callable[..., Any]] = {"activated": activated, "narrowed": narrowed, "masked": masked}
SHAPES = ((32, 32), (2048, 32))
WHOLE = 4 * 32 * 32
"""Bytes of the gathered parameters."""


def rows() -> NamedSharding:
    return NamedSharding(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,)), P("x", None))


def exported(function: Callable[..., Any]) -> jax.export.Exported:
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows()) for shape in SHAPES]
    return jax.export.export(jax.jit(function, in_shardings=rows(), out_shardings=rows()))(*structs)


@pytest.mark.parametrize("machine", ["bytes", "neutral", "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_gather(name: str, machine: str) -> None:
    report = meshbridge.report(exported(PROGRAMS[name]), machine=machine)
    assert [each.kind for each in report.collectives] == ["all_gather"]
    assert report.wire_bytes == WHOLE * 7 / 8


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_numbers(name: str) -> None:
    program = exported(PROGRAMS[name])
    random = np.random.default_rng(0)
    values = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
    found = meshbridge.partition(program).call(*(jax.device_put(value, rows()) for value in values))
    for ours, expected in zip(found, jax.jit(PROGRAMS[name])(*values), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    module = formats.unpack(program, context(), (), {}).module
    assert verify(module, meshbridge.partition(module)).equal


def test_what_the_user_computes_again_is_gathered_again() -> None:
    """Under `jax.checkpoint` a value is not kept for the backward pass, nor is the gathered one: that is what was asked for."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda h: h + jnp.tanh(h @ jax.nn.gelu(w)))
        return (layer(layer(x @ w)) ** 2).sum()

    gathers = [
        each
        for each in meshbridge.report(exported(lambda w, x: (jax.grad(loss)(w, x) * 2, x)), machine="bytes").collectives
        if each.kind == "all_gather"
    ]
    assert len(gathers) > 1
