"""An artifact that is partitioned while JAX has Shardy off is called with Shardy off, and on."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.errors import ShardingWarning
from meshbridge.tools import cli

X = np.arange(128, dtype=np.float32).reshape(8, 16) / 1024  # far from where tanh saturates, and its gradient cancels
W = np.arange(512, dtype=np.float32).reshape(16, 32) / 512
shardy = jax._src.config.use_shardy_partitioner


def network(mesh: jax.sharding.Mesh) -> export.Exported:
    """An artifact with given and open shardings at its boundary, a constraint and an unused argument inside."""
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))

    def function(x: jax.Array, w: jax.Array, unused: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ w + b), NamedSharding(mesh, P("data", "model")))
        return hidden @ w.T, hidden.sum()

    jitted = jax.jit(function, in_shardings=(rows, columns, None, None))
    return export.export(jitted)(X, W, X, np.ones(32, np.float32))


def results(program: export.Exported, mesh: jax.sharding.Mesh, is_on: bool) -> list[jax.Array]:
    """What a call gives that JAX lowers with Shardy, or without; and its gradient."""
    args = [
        jax.device_put(value, NamedSharding(mesh, spec))
        for value, spec in ((X, P("data")), (W, P(None, "model")), (X, P()), (np.ones(32, np.float32), P()))
    ]
    with shardy(is_on):
        differentiated = jax.value_and_grad(lambda w: program.call(args[0], w, *args[2:])[::-1], has_aux=True)
        return jax.tree.leaves(jax.jit(differentiated)(args[1]))


def one_device() -> list[jax.Array]:
    """What `results` gives of the same function without shardings."""

    def function(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jnp.tanh(X @ w + 1)
        return hidden.sum(), hidden @ w.T

    return jax.tree.leaves(jax.value_and_grad(function, has_aux=True)(jnp.asarray(W)))


@pytest.mark.parametrize("source", [False, True], ids=["from GSPMD", "from Shardy"])
def test_called_with_shardy_off_and_on(mesh: jax.sharding.Mesh, source: bool) -> None:
    with shardy(source):
        original = network(mesh)
    expected = one_device()
    with shardy(False):
        partitioned = meshbridge.partition(original)
        again = meshbridge.partition(partitioned)
    text = partitioned.mlir_module()
    assert "sdy" not in text
    assert '@SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}' in text
    assert again.mlir_module().count("stablehlo.all_reduce") == text.count("stablehlo.all_reduce")
    read = export.deserialize(partitioned.serialize(vjp_order=1))
    for program, is_on in ((partitioned, False), (partitioned, True), (read, False), (again, False)):
        for found, wanted in zip(results(program, mesh, is_on), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_xla_runs_exactly_our_collectives(mesh: jax.sharding.Mesh) -> None:
    with shardy(False):
        partitioned = meshbridge.partition(network(mesh))
        places = [NamedSharding(mesh, spec) for spec in (P("data"), P(None, "model"), P(), P())]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(partitioned.in_avals, places, strict=True)]
        compiled = jax.jit(partitioned.call).lower(*shapes).compile().as_text()
    written = re.findall(
        r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)", partitioned.mlir_module()
    )
    run = re.findall(r"[]})] (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", compiled)
    assert sorted(kind.replace("-", "_") for kind in run) == sorted(written) != []


def test_with_shardy_on_it_stays_in_sdy(mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    """In a file, which other processes call, that is worth a warning: JAX refuses it with Shardy off."""
    with shardy(False):
        original = network(mesh)
    partitioned = meshbridge.partition(original)
    assert "sdy.manual_computation" in partitioned.mlir_module()
    (tmp_path / "original.jax_export").write_bytes(original.serialize())
    program = meshbridge.load(tmp_path / "original.jax_export")
    with pytest.warns(
        ShardingWarning, match=r"function: warning: the artifact was exported with Shardy off, and .* on alone\n  hint"
    ):
        meshbridge.partition(program).serialize()
    assert meshbridge.convert(program, to="sdy").serialize()  # which asks for it: no warning


@pytest.mark.parametrize("is_on", [False, True])
def test_the_command_follows_the_flag(
    mesh: jax.sharding.Mesh, tmp_path: Path, capfd: pytest.CaptureFixture[str], is_on: bool
) -> None:
    """In a process of its own that is the variable JAX_USE_SHARDY_PARTITIONER of the environment."""
    source, target = tmp_path / "in.jax_export", tmp_path / "out.jax_export"
    with shardy(False):
        source.write_bytes(network(mesh).serialize())
    with shardy(is_on):
        assert cli.main(["partition", str(source), "-o", str(target)]) == 0
    assert ("hint: JAX_USE_SHARDY_PARTITIONER=0" in capfd.readouterr().err) == is_on
    assert ("sdy" in export.deserialize(target.read_bytes()).mlir_module()) == is_on
