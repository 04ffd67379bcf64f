"""Local programs run through the PJRT client on global arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import MeshError, ir
from tests.patience import PATIENCE

ROWS = """
mesh.mesh @m(shape = 2x4) {meshbridge.axis_names = ["x", "y"]DEVICES}
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %rows = mesh.sharding @m split_axes = [[0, 1]] : !mesh.sharding
  %0 = mesh.shard %a to %rows : tensor<8x4xf32>
  %1 = stablehlo.add %0, %0 : tensor<8x4xf32>
  %whole = mesh.sharding @m split_axes = [[], [1]] : !mesh.sharding
  %2 = mesh.shard %1 to %whole annotate_for_users : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
"""


def module(text: str, ctx: ir.Context) -> ir.Module:
    return assembly.read(text, "test.mlir", ctx)


def test_runs_on_numpy_arrays_and_keeps_axis_names(ctx: ir.Context) -> None:
    executable = meshbridge.compile(module(ROWS.replace("DEVICES", ""), ctx))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    (result,) = executable(x)
    np.testing.assert_array_equal(result, 2 * x)
    assert isinstance(result.sharding, NamedSharding)
    assert result.sharding.spec == PartitionSpec(None, "y")
    assert result.sharding.mesh.axis_names == ("x", "y")


def test_permuted_device_order(ctx: ir.Context) -> None:
    """The device at position p of the mesh is the device_ids[p]-th: data must land and be exchanged accordingly."""
    order = [3, 1, 2, 0, 7, 6, 5, 4]
    text = ROWS.replace("DEVICES", f", meshbridge.device_ids = array<i64: {', '.join(map(str, order))}>")
    executable = meshbridge.compile(module(text, ctx))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    (result,) = executable(x)
    np.testing.assert_array_equal(result, 2 * x)
    assert [device.id for device in executable.jax_mesh.devices.flat] == order


def test_takes_placed_arrays_as_they_lie(exported: export.Exported, mesh: jax.sharding.Mesh) -> None:
    executable = meshbridge.compile(exported)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(place.shape).astype(place.dtype) for place in executable.inputs]
    placed = [jax.device_put(array, executable.sharding(place)) for array, place in zip(arrays, executable.inputs, strict=True)]
    x, first, second = arrays
    hidden = np.tanh(x @ first)
    for given in (arrays, placed):
        result = executable(given[0], {"in": given[1], "out": given[2]})
        np.testing.assert_allclose(result["out"], hidden @ second, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result["sum"], hidden.sum(), rtol=1e-4, atol=1e-4)


def test_the_module_given_is_not_changed(ctx: ir.Context) -> None:
    given = module(ROWS.replace("DEVICES", ""), ctx)
    before = assembly.write(given)
    meshbridge.compile(given)
    assert assembly.write(given) == before


def test_uneven_shards_are_padded_and_trimmed(ctx: ir.Context) -> None:
    boundary = "{meshbridge.global = tensor<10xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[0]]>}"
    text = f"""
    mesh.mesh @m(shape = 4)
    func.func @main(%a: tensor<3xf32> {boundary}) -> (tensor<3xf32> {boundary}) {{
      %0 = stablehlo.exponential %a : tensor<3xf32>
      return %0 : tensor<3xf32>
    }}
    """
    executable = meshbridge.compile(module(text, ctx))
    assert executable.inputs[0].shard_shape == (3,)
    (result,) = executable(np.arange(10, dtype=np.float32))
    np.testing.assert_allclose(result, np.exp(np.arange(10)), rtol=1e-6, atol=1e-6)


def test_sixty_four_bit_numbers_stay(ctx: ir.Context) -> None:
    text = """
    func.func @main(%a: tensor<2xi64>, %b: tensor<2xf64>) -> (tensor<2xi64>, tensor<2xf64>) {
      return %a, %b : tensor<2xi64>, tensor<2xf64>
    }
    """
    executable = meshbridge.compile(module(text, ctx))
    integers, numbers = map(np.asarray, executable(np.array([2**40, 1]), np.array([1 + 1e-12, 0.0])))
    assert integers[0] == 2**40
    assert numbers[0] == 1 + 1e-12


def test_wrong_arguments_are_named(ctx: ir.Context) -> None:
    executable = meshbridge.compile(module(ROWS.replace("DEVICES", ""), ctx))
    with pytest.raises(MeshError, match="takes 1 arguments, 2 given"):
        executable(np.zeros((8, 4), np.float32), np.zeros(()))
    with pytest.raises(MeshError, match=r"argument 0: expected float32\[8, 4\], found float32\[4, 8\]"):
        executable(np.zeros((4, 8), np.float32))
    with pytest.raises(MeshError, match=r"argument 0: expected float32\[8, 4\], found float64\[8, 4\]"):
        executable(np.zeros((8, 4)))


def test_more_devices_than_there_are(ctx: ir.Context) -> None:
    with pytest.raises(MeshError, match="mesh @m needs 8 devices, there are 3"):
        meshbridge.compile(module(ROWS.replace("DEVICES", ""), ctx), devices=jax.devices()[:3])


def test_what_xla_cannot_run_is_a_diagnostic(ctx: ir.Context) -> None:
    call = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @nowhere(%a) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    with pytest.raises(MeshError, match=r"error: XLA cannot compile the program: .*nowhere"):
        meshbridge.compile(module(call, ctx))
    dynamic = "func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }"
    with pytest.raises(MeshError, match=r"test.mlir:1:1: error: 'func.func' op has a boundary of type tensor<\?xf32>, expected"):
        meshbridge.compile(module(dynamic, ctx))


MANY_RUNS = """
import sys
import numpy as np
import meshbridge

executable = meshbridge.compile(meshbridge.load(sys.argv[1]), machine="neutral")
arguments = [np.full(place.shape, 0.1, place.dtype) for place in executable.inputs]
first, *others = ([np.asarray(result) for result in executable(arguments[:-1], arguments[-1:])] for _ in range(30))
for results in others:
    for result, expected in zip(results, first, strict=True):
        np.testing.assert_array_equal(result, expected)
"""


def test_collectives_beside_a_loop_of_collectives() -> None:
    """A flow's step reduces beside loops that reduce: every device must run both in one order, or all wait for each other. In a
    process of its own, which can be ended."""
    program = Path(__file__).parents[2] / "testdata" / "flow_scan.jax_export"
    done = subprocess.run(
        [sys.executable, "-c", MANY_RUNS, program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
