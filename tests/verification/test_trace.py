"""The first value that differs, and on which devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.read import formats
from meshbridge.verification.verdict import verify


@pytest.fixture
def programs(mesh: jax.sharding.Mesh) -> tuple[ir.Module, ir.Module]:
    """A sum over a split dimension and what follows, as source and partitioned."""
    first, second = mesh.axis_names

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w) + 1.0)

    shardings = NamedSharding(mesh, P(first, second)), NamedSharding(mesh, P(second, None))
    jitted = jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, P(first, None)))
    exported = jax.export.export(jitted)(jnp.zeros((2, 64)), jnp.zeros((64, 3)))
    source = formats.unpack(exported, mlir.context()).module
    partitioned = formats.copy_module(source)
    partitioning.partition_module(partitioned, pipeline.Options(collectives="off"))
    return source, partitioned


def drop(module: ir.Module, name: str) -> None:
    """Takes the first op of this name, whose result is like its operand, out of a program."""
    op = next(op for op in mlir.walk_all(module) if op.name == name)
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def test_equal_programs_part_nowhere(programs: tuple[ir.Module, ir.Module]) -> None:
    assert verify(*programs).parting is None


def test_a_missing_all_reduce_is_named(programs: tuple[ir.Module, ir.Module]) -> None:
    source, partitioned = programs
    drop(partitioned, "stablehlo.all_reduce")
    parting = verify(source, partitioned).parting
    assert parting is not None
    assert parting.op == "stablehlo.tanh"
    assert "test_trace.py" in parting.location
    assert parting.devices == tuple(range(8))
    assert "an all-reduce is missing" in parting.cause


def test_a_missing_op_is_named(programs: tuple[ir.Module, ir.Module]) -> None:
    source, partitioned = programs
    drop(partitioned, "stablehlo.tanh")
    parting = verify(source, partitioned).parting
    assert parting is not None
    assert parting.op == "stablehlo.add"


@pytest.fixture
def maxima(mesh: jax.sharding.Mesh) -> tuple[ir.Module, ir.Module]:
    """A maximum over a split dimension and what follows, as source and partitioned."""
    first, second = mesh.axis_names

    def function(x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(jnp.max(x, axis=0)) + 1.0) * 2.0

    shardings = NamedSharding(mesh, P(second, first)), NamedSharding(mesh, P(first))
    jitted = jax.jit(function, in_shardings=shardings[:1], out_shardings=shardings[1])
    source = formats.unpack(jax.export.export(jitted)(jnp.zeros((16, 6))), mlir.context()).module
    partitioned = formats.copy_module(source)
    partitioning.partition_module(partitioned, pipeline.Options(collectives="off"))
    return source, partitioned


def test_a_missing_maximum_over_devices_is_named(maxima: tuple[ir.Module, ir.Module]) -> None:
    drop(maxima[1], "stablehlo.all_reduce")
    parting = verify(*maxima).parting
    assert parting is not None
    assert parting.op == "stablehlo.sine"
    assert "an operand is a partial maximum along" in parting.cause


def test_a_partial_maximum_that_is_reduced_later_is_no_fault(maxima: tuple[ir.Module, ir.Module]) -> None:
    drop(maxima[1], "stablehlo.tanh")
    parting = verify(*maxima).parting
    assert parting is not None
    assert parting.op == "stablehlo.multiply"


@pytest.mark.parametrize("of_a_product", [False, True])
def test_a_maximum_that_takes_negative_numbers_backwards_is_found(mesh: jax.sharding.Mesh, of_a_product: bool) -> None:
    """As it is lowered to a maximum of integers that order floats, where the magnitudes of negative numbers are not mirrored."""
    first, second = mesh.axis_names

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.max(x @ w if of_a_product else x + w[0, 0], axis=0)

    jitted = jax.jit(function, in_shardings=(NamedSharding(mesh, P((first, second), None)), NamedSharding(mesh, P())))
    source = formats.unpack(jax.export.export(jitted)(jnp.zeros((64, 8)), jnp.zeros((8, 8))), mlir.context()).module
    partitioned = formats.copy_module(source)
    partitioning.partition_module(partitioned)
    assert verify(source, partitioned).equal
    for op in [op for op in mlir.walk_all(partitioned) if op.name == "stablehlo.xor"]:
        op.results[0].replace_all_uses_with(op.operands[0])
    assert not verify(source, partitioned).equal
