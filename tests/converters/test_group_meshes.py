"""Device groups that name the axes of a mesh by its symbol, as jax 0.12 writes them inside `shard_map`."""

from __future__ import annotations

import numpy as np
import pytest

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.groups import read_groups
from meshbridge.ir.mlir import MeshError, OpError, ir, sdy
from meshbridge.ir.sharding import Mesh
from meshbridge.verification.layout import groups_by_axes
from meshbridge_converters import gspmd
from meshbridge_converters import sdy as ends
from tests.mesh_axes import needs_mesh_axes

PROGRAM = """sdy.mesh @mesh = <["a"=2, "b"=4]>
sdy.mesh @of_groups = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) -> tensor<8x16xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {"b"}]>] out_shardings=[<@mesh, [{"a"}, {"b"}]>]
      manual_axes={"a", "b"} (%y: tensor<4x4xf32>) {
    %1 = "stablehlo.all_reduce"(%y) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = GROUPS, use_global_device_ids}> ({
    ^bb0(%left: tensor<f32>, %right: tensor<f32>):
      %2 = stablehlo.add %left, %right : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    sdy.return %1 : tensor<4x4xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""

AXIS_A = '#stablehlo.replica_group_mesh_axes<mesh = @of_groups, axes = [#stablehlo.axis_ref<name = "a">]>'
LISTED = "dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>"
X = np.arange(128, dtype=np.float32).reshape(8, 16)


def program(groups: str, order: str = "") -> ir.Module:
    """With `groups` on a mesh whose devices stand in `order`."""
    text = PROGRAM.replace("GROUPS", groups).replace('"b"=4]>\nfunc', f'"b"=4]{order}>\nfunc')
    return mlir.parse(text, "program.mlir", mlir.context())


@needs_mesh_axes
@pytest.mark.parametrize("order", ["", ", device_ids=[7, 6, 5, 4, 3, 2, 1, 0]"])
def test_they_come_back(order: str) -> None:
    module = program(AXIS_A, order)
    before = str(module)
    ends.import_module(module)
    module.operation.verify()
    assert "@of_groups" not in str(module).replace('sym_name = "of_groups"', "").split("replica_groups", 1)[1]
    ends.export_module(module)
    assert str(module) == before


@needs_mesh_axes
def test_they_compute_what_lists_do() -> None:
    (found,), (expected,) = (meshbridge.compile(program(groups))(X) for groups in (AXIS_A, LISTED))
    halves = X[:4] + X[4:]
    np.testing.assert_array_equal(found, np.concatenate([halves, halves]))
    np.testing.assert_array_equal(found, expected)


@needs_mesh_axes
def test_gspmd_has_them_listed() -> None:
    module = program(AXIS_A)
    ends.import_module(module)
    gspmd.export_module(module)
    module.operation.verify()
    assert LISTED in str(module)


@needs_mesh_axes
def test_a_mesh_that_is_not_declared() -> None:
    module = program(AXIS_A.replace("@of_groups", "@main"))
    with pytest.raises(OpError, match="has device groups on the mesh @main, which the module does not declare"):
        ends.import_module(module)


@needs_mesh_axes
@pytest.mark.parametrize("size", [8, 256])
def test_the_order_of_devices_inside_a_group_is_read(size: int) -> None:
    """MLIR prints more than a hundred numbers in hexadecimal."""
    order = [*range(size // 2, size), *range(size // 2)][::-1]
    mesh = f'#stablehlo.mesh<axes = [<name = "a", size = 2>, <name = "b", size = {size // 2}>], device_ids = dense<{order}> : '
    text = f'<mesh = {mesh}tensor<{size}xi64>>, axes = [#stablehlo.axis_ref<name = "a">]>'
    with mlir.context():
        attr = ir.Attribute.parse(f"#stablehlo.replica_group_mesh_axes{text}")
        expected = np.array(order).reshape(2, -1).T.tolist()
        found = read_groups(attr, Mesh("m", (size,)))
        assert found is not None
        assert found.tolist() == expected == groups_by_axes(attr, {})


if hasattr(sdy, "ReductionOp"):  # jaxlib 0.10 and older ones have sums alone

    @pytest.mark.parametrize("kind", ["MAX", "MIN"])
    def test_values_that_are_unreduced_by_another_operation_are_refused(kind: str) -> None:
        function = (
            "func.func @main(%a: tensor<8xf32> {sdy.sharding = SHARDING}) -> tensor<8xf32> {\n  return %a : tensor<8xf32>\n}"
        )
        text = f'sdy.mesh @m = <["x"=2]>\n{function}'
        with mlir.context() as ctx, ir.Location.unknown():
            unreduced = [sdy.AxisRefAttr.get("x")]
            closed = [sdy.DimensionShardingAttr.get([], True)]
            attr = sdy.TensorShardingAttr.get("m", closed, [], unreduced, reduction_op=getattr(sdy.ReductionOp, kind))
            module = mlir.parse(text.replace("SHARDING", str(attr)), "program.mlir", ctx)
        with pytest.raises(MeshError, match=f"is unreduced by {kind}, expected SUM"):
            ends.import_module(module)
