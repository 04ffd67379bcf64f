"""Programs whose ops send several permutes that do not need one another: how many launches, and the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.verification.verdict import verify

Specs = tuple[P, ...]


def gates(x: jax.Array, w: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Those of an LSTM, in one product: each device has columns of one gate only."""
    i, f, o, g = jnp.split(x @ w, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def halves(x: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=1)
    return jax.nn.silu(a) * b


def joined(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.concatenate([x, y], axis=1)


def stencil(x: jax.Array) -> jax.Array:
    around = jnp.pad(x, ((1, 1), (0, 0)))
    return around[:-2] + around[2:] - 2 * x


COLUMNS = P(None, "model")
CASES: dict[str, tuple[Callable[..., Any], Specs, P | Specs, list[tuple[int, int]], int, str, int]] = {
    "gates": (
        gates, (P("data"), COLUMNS, P("data", "model")), (P("data", "model"),) * 2, [(8, 16), (16, 64), (8, 16)],
        12, "all_to_all", 1,
    ),
    "halves": (halves, (COLUMNS,), COLUMNS, [(8, 32)], 4, "collective_permute", 2),
    "joined": (joined, (COLUMNS, COLUMNS), COLUMNS, [(8, 32)] * 2, 4, "collective_permute", 2),
    "stencil": (stencil, (P("data"),), P("data"), [(16, 8)], 2, "collective_permute", 1),
}  # fmt: skip
"""Function, shardings, shapes; how many permutes there are without the passes, and what there is of what kind with them."""


def mesh_of(order: list[int]) -> Mesh:
    return Mesh(np.array(jax.devices())[order].reshape(2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


IN_ORDER = list(range(8))


def exported(name: str, order: list[int] = IN_ORDER) -> jax.export.Exported:
    function, arguments, results, shapes, *_ = CASES[name]
    mesh = mesh_of(order)
    inputs = tuple(NamedSharding(mesh, spec) for spec in arguments)
    outputs = jax.tree.map(lambda spec: NamedSharding(mesh, spec), results, is_leaf=lambda each: isinstance(each, P))
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(function, in_shardings=inputs, out_shardings=outputs))(*structs)


@pytest.mark.parametrize("name", CASES)
def test_fewer_launches_of_as_many_bytes(name: str) -> None:
    *_, before, kind, after = CASES[name]
    program = exported(name)
    apart = meshbridge.report(program, machine="bytes", collectives="off")
    merged = meshbridge.report(program, machine="bytes")
    assert len(apart.collectives) == before
    assert Counter(each.kind for each in merged.collectives) == {kind: after}
    assert merged.wire_bytes == apart.wire_bytes


@pytest.mark.parametrize("machine", ["bytes", "h100"])
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, machine: str) -> None:
    function, *_, shapes, _, _, _ = CASES[name]
    random = np.random.default_rng(0)
    values = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    for order in (IN_ORDER, [3, 1, 0, 2, 7, 6, 4, 5]):
        program = exported(name, order)
        shardings = program.in_shardings_jax(mesh_of(order))
        found = meshbridge.partition(program, machine=machine).call(*map(jax.device_put, values, shardings))
        for ours, expected in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(*values)), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_step_takes_less_time() -> None:
    for machine in ("h100:1x1x8", "v5e:2x4"):
        program = exported("gates")
        apart = meshbridge.report(program, machine=machine, collectives="off").seconds
        merged = meshbridge.report(program, machine=machine).seconds
        assert apart is not None
        assert merged is not None
        assert merged < 0.5 * apart


@pytest.mark.parametrize("name", CASES)
def test_exactly_its_source(name: str) -> None:
    program = formats.unpack(exported(name), context(), (), {}).module
    for machine in ("bytes", "h100"):
        assert verify(program, meshbridge.partition(program, machine=machine)).equal


def test_zeros_where_nothing_arrives() -> None:
    """What users' own permutes leave on devices that receive nothing, they may read."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def ends(x: jax.Array) -> jax.Array:
        there, back = jax.lax.ppermute(x, "x", [(0, 1), (2, 3)]), jax.lax.ppermute(2 * x, "x", [(1, 0), (3, 2), (5, 5)])
        return there + 10 * back

    inside = jax.shard_map(ends, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    function = jax.jit(lambda x: jnp.tanh(inside(x)).sum() + x)
    sharding = NamedSharding(mesh, P("x"))
    struct = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
    program = jax.export.export(jax.jit(function, in_shardings=sharding, out_shardings=sharding))(struct)
    x = jax.device_put(np.linspace(0.1, 0.8, 8, dtype=np.float32), sharding)
    np.testing.assert_allclose(meshbridge.partition(program).call(x), function(x), rtol=1e-6)
