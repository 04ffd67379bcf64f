"""A wrapped local program is one `sdy.manual_computation` that JAX runs as it stands."""

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
from jaxlib import _jax

from meshbridge.ir import mlir
from meshbridge.ir.mlir import OpError, ir
from meshbridge_converters import manual, sdy

LOCAL = """
  "mesh.mesh"() {sym_name = "mesh", shape = array<i64: 2, 2, 2>,
    meshbridge.axis_names = ["x", "y"], meshbridge.axis_digits = array<i64: 1, 2>,
    stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 4 : i64}]}} : () -> ()
  func.func public @main(
      %arg0: tensor<4x4xf32> {jax.buffer_donor = true, meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @mesh,
                              meshbridge.split_axes = #mesh.axisarray<[[0], [1, 2]]>},
      %arg1: tensor<f32> {meshbridge.global = tensor<f32>, meshbridge.mesh = @mesh,
                          meshbridge.split_axes = #mesh.axisarray<[]>})
      -> (tensor<4x16xf32> {jax.result_info = "result[0]", meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @mesh,
                            meshbridge.split_axes = #mesh.axisarray<[[0], []]>},
          tensor<1x16xf32> {jax.result_info = "result[1]", meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @mesh,
                           meshbridge.split_axes = #mesh.axisarray<[[0, 1, 2], []]>}) {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 1 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}>
      : (tensor<4x4xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<4x16xf32>
    %3 = stablehlo.partition_id : tensor<ui32>
    %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    return %2, %5 : tensor<4x16xf32>, tensor<1x16xf32>
  }
"""


def wrapped(text: str) -> ir.Module:
    module = mlir.parse(text, "local.mlir", mlir.context())
    manual.wrap_manual(module)
    module.operation.verify()
    return module


def test_runs_in_jax_with_no_collective_added() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    exported = export.export(
        jax.jit(
            lambda x, s: (x * s, x),
            in_shardings=(NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P())),
            out_shardings=(NamedSharding(mesh, P("x")), NamedSharding(mesh, P(("x", "y")))),
        )
    )(jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32))
    portable = _jax.mlir.serialize_portable_artifact(str(wrapped(LOCAL)), "1.0.0", True)
    replaced = export.deserialize(dataclasses.replace(exported, mlir_module_serialized=portable).serialize())

    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    argument = jax.device_put(x, NamedSharding(mesh, P("x", "y")))
    compiled = jax.jit(replaced.call).lower(argument, np.float32(2)).compile()
    assert re.findall(r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", compiled.as_text()) == [
        "all-gather"
    ]
    scaled, device = compiled(argument, np.float32(2))
    np.testing.assert_array_equal(scaled, x * 2)
    np.testing.assert_array_equal(np.asarray(device)[:, 0], np.arange(8))


def test_keeps_attributes_locations_and_mesh() -> None:
    text = wrapped(LOCAL).operation.get_asm(enable_debug_info=True)
    assert 'sdy.mesh @mesh = <["x"=2, "y"=4]> {stablehlo.mesh' in text
    assert "jax.buffer_donor = true" in text
    assert 'jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>' in text
    assert 'out_shardings=[<@mesh, [{"x"}, {}], replicated={"y"}>, <@mesh, [{"x", "y"}, {}]>]' in text
    assert "meshbridge" not in text
    assert "mesh.mesh" not in text.replace("stablehlo.mesh", "")
    line = next(number for number, content in enumerate(LOCAL.splitlines(), 1) if "%arg0: " in content)
    assert f'loc("-":{line}:7)' in text


def test_is_the_identity_without_a_mesh() -> None:
    text = "func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> { return %arg0 : tensor<4xf32> }"
    module = mlir.parse(text, "local.mlir", mlir.context())
    before = str(module)
    manual.wrap_manual(module)
    sdy.import_module(module)
    assert str(module) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("meshbridge.global = tensor<f32>, ", "", "arg 1 does not carry meshbridge.global"),
        (
            '"result[0]", meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @mesh',
            '"result[0]", meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @other',
            "on several meshes: @mesh, @other",
        ),
    ],
)
def test_refuses_what_is_not_a_local_program(old: str, new: str, message: str) -> None:
    assert old in LOCAL
    module = mlir.parse(LOCAL.replace(old, new), "local.mlir", mlir.context())
    with pytest.raises(OpError, match=re.escape(message)):
        manual.wrap_manual(module)
