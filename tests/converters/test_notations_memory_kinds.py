"""Memory kinds of arguments and results, and placements between them, are kept, and the numbers with them."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError
from meshbridge.read import formats
from meshbridge_converters import gspmd, sdy
from tests.versions import PLACES_ON_HOSTS

# Sums of their products are exact in any order.
A = (np.arange(128, dtype=np.float32) / 64 - 1).reshape(8, 16)
B = (np.arange(128, dtype=np.float32) / 64).reshape(16, 8)


def offloading(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    product = jax.device_put(a, jax.memory.Space.Device) @ b
    return product, jax.device_put(jnp.sin(product), jax.memory.Space.Host)


def exported(*, shardy: bool = True, out: P | None = None) -> export.Exported:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    rows, columns = NamedSharding(mesh, P("x"), memory_kind="pinned_host"), NamedSharding(mesh, P(None, "y"))
    outs = None if out is None else (NamedSharding(mesh, P("x")), NamedSharding(mesh, out, memory_kind="pinned_host"))
    with jax._src.config.use_shardy_partitioner(shardy):
        jitted = jax.jit(offloading, in_shardings=(rows, columns), out_shardings=outs)
        return export.export(jitted)(A, B)


def kinds(text: str) -> list[str]:
    return re.findall(r'memory_kind = "(\w+)"', text) + re.findall(r'_xla_buffer_placement = "(\w+)"', text)


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_converting_keeps_them(shardy: bool) -> None:
    module = formats.unpack(exported(shardy=shardy), mlir.context()).module
    before = str(module)
    assert "pinned_host" in kinds(before)
    converter = sdy if shardy else gspmd
    converter.import_module(module)
    assert kinds(str(module)) == kinds(before)
    converter.export_module(module)
    assert kinds(str(module)) == kinds(before)


runs_placements = pytest.mark.skipif(
    not PLACES_ON_HOSTS, reason="the CPU backend of this jaxlib has no other memory: it drops placements or refuses them"
)


@runs_placements
@pytest.mark.parametrize("out", [P("x"), P("y"), None], ids=["as computed", "resharded", "left open"])
def test_partitioned_results_are_in_the_memory_that_was_asked_for(out: P | None) -> None:
    program = exported(out=out)
    partitioned = meshbridge.partition(program)
    (rows, _), given = partitioned._in_named_shardings, [A, B]
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    placed = [jax.device_put(A, NamedSharding(mesh, rows.spec, memory_kind="pinned_host")), given[1]]
    expected, found = offloading(*given), jax.jit(partitioned.call)(*placed)
    assert [each.sharding.memory_kind for each in found] == ["device", "pinned_host"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)


@runs_placements
def test_compiled_programs_take_and_give_them() -> None:
    found = meshbridge.compile(exported(out=P("x")))(A, B)
    assert [each.sharding.memory_kind for each in found] == ["device", "pinned_host"]
    np.testing.assert_allclose(np.asarray(found[1]), np.sin(A @ B), rtol=1e-4)


def test_a_result_in_another_memory_is_refused() -> None:
    """As XLA before jaxlib 0.10 leaves it, which drops placements on CPUs."""
    executable = meshbridge.compile(jax.jit(jnp.sin), A)
    (place,) = executable.outputs
    asked = dataclasses.replace(executable, outputs=(dataclasses.replace(place, memory="pinned_host"),))
    with pytest.raises(
        MeshError, match=r"^error: a result is to be in memory of kind 'pinned_host', XLA leaves it in 'device'\n"
    ):
        asked(A)


def test_memory_that_the_devices_do_not_have_is_refused() -> None:
    text = """
    sdy.mesh @m = <["x"=2]>
    func.func @main(%a: tensor<8xf32> {mhlo.memory_kind = "attic", sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> tensor<8xf32> {
      return %a : tensor<8xf32>
    }"""
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(MeshError, match=r"is kept in memory of kind 'attic', cpu has .*device"):
        meshbridge.compile(module)
