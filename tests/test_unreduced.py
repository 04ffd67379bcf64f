"""JAX's `unreduced`: values declared partial stay so, through additions, loops and branches, and are reduced once, where asked.

Every program is run beside XLA's own partitioning of it: equal values, device by device, and no more bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.analysis import hlo, hlo_communication

UNREDUCED = P(None, None, unreduced={"x"})


@pytest.fixture(autouse=True)
def explicit_mesh() -> Iterator[Mesh]:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        yield mesh


def _dot(a: jax.Array, b: jax.Array, spec: P = UNREDUCED) -> jax.Array:
    return jnp.einsum("ij,jk->ik", a, b, out_sharding=spec)


def _accumulated(a: jax.Array, b: jax.Array, start: jax.Array) -> jax.Array:
    return lax.scan(lambda total, pair: (total + _dot(*pair), None), start, (a, b))[0]


def _zeros() -> jax.Array:
    return reshard(jnp.zeros((16, 16)), UNREDUCED)


def reduced(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(_dot(a, b), P())


def scattered(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(_dot(a, b), P("x", None))


def sliced(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(_dot(a, b), P("y", None))


def joined(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(_dot(a, b) + _dot(a * 2, b), P())


def used_again(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One all-reduce for two readers."""
    total = _dot(a, b)
    return jnp.sin(reshard(total, P())), jnp.cos(reshard(total, P()))


def in_a_scan(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(_accumulated(jnp.stack([a] * 5), jnp.stack([b] * 5), _zeros()), P())


def in_two_scans(a: jax.Array, b: jax.Array) -> jax.Array:
    batches = jnp.stack([a] * 5), jnp.stack([b] * 5)
    return reshard(lax.scan(lambda total, _: (_accumulated(*batches, total), None), _zeros(), None, length=3)[0], P())


def in_branches(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(lax.cond(a.shape[0] > jnp.argmax(jnp.arange(3)), lambda: _dot(a, b), _zeros), P())


def gradients(a: jax.Array, b: jax.Array) -> jax.Array:
    """Micro-batches of one step: rows are split along `x`, weights are replicated."""

    def loss(weights: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.einsum("ij,jk->ik", batch, weights, out_sharding=P("x", None))))

    weights = reshard(jnp.sin(jnp.arange(256.0)).reshape(16, 16), P(None, None, reduced={"x"}))
    batches = jnp.stack([reshard(a, P("x", None))[:, :16]] * 5)
    total = lax.scan(lambda total, batch: (total + jax.grad(loss)(weights, batch), None), _zeros(), batches)[0]
    return reshard(total, P())


PROGRAMS = [reduced, scattered, sliced, joined, used_again, in_a_scan, in_two_scans, in_branches, gradients]


def _values(mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 32), np.float32), rng.standard_normal((32, 16), np.float32)
    return jax.device_put(a, NamedSharding(mesh, P(None, "x"))), jax.device_put(b, NamedSharding(mesh, P("x", None)))


def _xla_bytes(jitted: Any, *arguments: Any) -> float:
    """What XLA's own partitioning sends, all-reduces that are only sliced taken as reduce-scatters."""
    return hlo_communication.communication(hlo.read(jitted.lower(*arguments).compile().as_text())).scattered_bytes


def _compared(function: Callable[..., Any], *arguments: jax.Array) -> None:
    """Shards of the partitioned program's results equal those of XLA's, and so do the results of the compiled one."""
    jitted = jax.jit(function)
    exported = jax.export.export(jitted)(*arguments)
    report = meshbridge.report(exported)
    assert report.wire_bytes <= _xla_bytes(jitted, *arguments), [(each.kind, each.executions) for each in report.collectives]
    found = jax.jit(meshbridge.partition(exported).call)(*arguments)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(jitted(*arguments)), strict=True):
        assert ours.sharding.spec == theirs.sharding.spec
        for mine, other in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
            np.testing.assert_allclose(np.asarray(mine.data), np.asarray(other.data), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_declared_values_are_reduced_once(program: Callable[..., Any], explicit_mesh: Mesh) -> None:
    _compared(program, *_values(explicit_mesh))
