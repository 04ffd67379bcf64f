"""JAX's `unreduced`: values declared partial stay so, through additions, loops and branches, and are reduced once, where asked.

Every program is run beside XLA's own partitioning of it: equal values, device by device, and no more bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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
from meshbridge.tools import cli

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


def converted(a: jax.Array, b: jax.Array) -> jax.Array:
    """Each term is converted: what is reduced is of the wider type. Numbers are integers, so that nothing is rounded."""
    terms = _dot(jnp.round(a).astype(jnp.bfloat16), jnp.round(b).astype(jnp.bfloat16))
    return reshard(terms.astype(jnp.float32) + _zeros(), P())


def moved(a: jax.Array, b: jax.Array) -> jax.Array:
    """Through what only moves data, or joins several values."""
    total = _dot(a, b)
    rows = lax.broadcast_in_dim(total.T, (3, 16, 16), (1, 2), out_sharding=P(None, None, None, unreduced={"x"}))
    both = lax.concatenate([rows, lax.pad(rows, jnp.float32(0), [(0, 1, 0), (0, 0, 0), (0, 0, 0)])], 0)
    first, _ = lax.split(both, [4, 3], axis=0)
    written = lax.dynamic_update_slice(first, rows + rows, (jnp.argmin(jnp.arange(3)), 0, 0))
    where = jnp.broadcast_to(jnp.arange(4)[:, None, None] > 1, written.shape)
    return reshard(lax.select(where, written, first), P())


def stacked(a: jax.Array, b: jax.Array) -> jax.Array:
    """The gradients of layers, which a scan stacks, added up over micro-batches."""

    def loss(layers: jax.Array, batch: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
            return jnp.einsum("ij,jk->ik", jnp.tanh(x), weights, out_sharding=P("x", None)), None

        return jnp.sum(lax.scan(layer, batch, layers)[0])

    three = P(None, None, None, unreduced={"x"})
    layers = reshard(jnp.sin(jnp.arange(1024.0)).reshape(4, 16, 16), P(None, None, None, reduced={"x"}))
    batches = jnp.stack([reshard(a, P("x", None))[:, :16]] * 5)
    start = reshard(jnp.zeros((4, 16, 16)), three)
    total = lax.scan(lambda total, batch: (total + jax.grad(loss)(layers, batch), None), start, batches)[0]
    return reshard(total, P())


PROGRAMS = [
    converted,
    moved,
    stacked,
    reduced,
    scattered,
    sliced,
    joined,
    used_again,
    in_a_scan,
    in_two_scans,
    in_branches,
    gradients,
]


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


def given_back(a: jax.Array, b: jax.Array) -> jax.Array:
    return _dot(a, b)


def made_of_shards(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each device's shard becomes its term, without communication."""
    return reshard(reshard(a, P("x", None)), UNREDUCED), reshard(reshard(b, P(("y", "x"), None)), P("y", None, unreduced={"x"}))


def taken(a: jax.Array, b: jax.Array) -> jax.Array:
    return reshard(a, P("y", None))


def taken_and_added(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return reshard(a + b, P()), a + b


def taken_by_a_shard_map(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.shard_map(lambda term: lax.psum(term, "x"), in_specs=UNREDUCED, out_specs=P())(a)


def _term(a: jax.Array, b: jax.Array) -> jax.Array:
    """What one device knows of a product, which jax 0.12 wants to be told is unreduced."""
    return lax.pcast(a @ b, "x", to="unreduced") if jax.__version_info__ >= (0, 12) else a @ b


def given_by_a_shard_map(a: jax.Array, b: jax.Array) -> jax.Array:
    specs = (P(None, "x"), P("x", None))
    return reshard(jax.shard_map(_term, in_specs=specs, out_specs=UNREDUCED)(a, b), P())


def from_shard_map_to_shard_map(a: jax.Array, b: jax.Array) -> jax.Array:
    specs = (P(None, "x"), P("x", None))
    return taken_by_a_shard_map(jax.shard_map(_term, in_specs=specs, out_specs=UNREDUCED)(a, b), b)


@pytest.mark.parametrize(
    "program", [given_back, made_of_shards, given_by_a_shard_map, from_shard_map_to_shard_map], ids=lambda each: each.__name__
)
def test_results_and_shard_maps(program: Callable[..., Any], explicit_mesh: Mesh) -> None:
    _compared(program, *_values(explicit_mesh))


def _terms(mesh: Mesh, seed: int) -> jax.Array:
    """An array whose devices along `x` hold different terms."""
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((16, 16), np.float32) for _ in range(2)]
    shards = [jax.device_put(rows[row], device) for row, devices in enumerate(mesh.devices) for device in devices]
    return jax.make_array_from_single_device_arrays((16, 16), NamedSharding(mesh, UNREDUCED), shards)


@pytest.mark.parametrize("program", [taken, taken_and_added, taken_by_a_shard_map], ids=lambda program: program.__name__)
def test_arguments_come_unreduced(program: Callable[..., Any], explicit_mesh: Mesh) -> None:
    """The caller passes terms on, as declared."""
    terms = [_terms(explicit_mesh, seed) for seed in range(2)]
    _compared(program, *terms)
    exported = jax.export.export(jax.jit(program))(*terms)
    for found, wanted in zip(
        jax.tree.leaves(meshbridge.compile(exported)(*terms)), jax.tree.leaves(jax.jit(program)(*terms)), strict=True
    ):
        assert found.sharding.is_equivalent_to(wanted.sharding, 2)
        for mine, other in zip(found.addressable_shards, wanted.addressable_shards, strict=True):
            np.testing.assert_allclose(np.asarray(mine.data), np.asarray(other.data), rtol=1e-5, atol=1e-5)


def test_other_arrays_become_one_term(explicit_mesh: Mesh) -> None:
    """A compiled program takes an ordinary array for an unreduced argument: its sum is that array."""
    value = np.random.default_rng(0).standard_normal((16, 16), np.float32)
    exported = jax.export.export(jax.jit(lambda x: reshard(x, P())))(_terms(explicit_mesh, 0))
    np.testing.assert_array_equal(meshbridge.compile(exported)(value), value)


def test_run_checks_the_sum_of_what_devices_hold(explicit_mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = tmp_path / "given_back.jax_export"
    artifact.write_bytes(jax.export.export(jax.jit(given_back))(*_values(explicit_mesh)).serialize())
    assert cli.main(["run", str(artifact), "--check"]) == 0
    assert "largest difference from the unsharded run" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--after-each-pass"]], ids=["exported", "passes"])
def test_verify_refuses_unreduced_results(
    more: list[str], explicit_mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no exact evaluation of them, and must find no fault."""
    artifact = tmp_path / "given_back.jax_export"
    artifact.write_bytes(jax.export.export(jax.jit(given_back))(*_values(explicit_mesh)).serialize())
    assert cli.main(["verify", str(artifact), *more]) == 1
    assert "unreduced" in capsys.readouterr().err
