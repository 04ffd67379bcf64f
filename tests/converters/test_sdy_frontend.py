"""Modules in which sdy stands in strings read as those in which it stands as itself."""

from __future__ import annotations

import re

import pytest

from meshbridge.ir import mlir
from meshbridge.ir.mlir import OpError
from meshbridge.read import formats
from meshbridge_converters import sdy, sdy_frontend

STRINGS = r"""
module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22x\22=2, \22y\22=4]>}"}} {
  func.func public @main(%arg0: tensor<8x16xf32>
      {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22x\22}, {}]>"}}) -> tensor<8x16xf32> {
    %0 = stablehlo.custom_call @Sharding(%arg0)
      {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {?}]>]>"}}
      : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {mhlo.frontend_attributes = {
      xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>",
      xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22}>"}} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %2 = call @xla.sdy.manual_computation_body(%1) {mhlo.frontend_attributes = {
      xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>",
      xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22}>",
      xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>"}} : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %3 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%2) {mhlo.frontend_attributes = {
      xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22}>",
      xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>"}} : (tensor<4x16xf32>) -> tensor<8x16xf32>
    stablehlo.custom_call @xla.sdy.ShardingGroup(%3)
      {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.sharding_group_id = "21 : i64"}} : (tensor<8x16xf32>) -> ()
    %4 = stablehlo.custom_call @xla.sdy.PropagationBarrier(%3)
      {mhlo.frontend_attributes = {xla.sdy.allowed_direction = "1 : i32"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%4) {has_side_effect = true, mhlo.frontend_attributes = {
      xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %5 : tensor<8x16xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%arg0: tensor<4x16xf32>) -> tensor<4x16xf32> {
    return %arg0 : tensor<4x16xf32>
  }
}
"""

OPERATIONS = """
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {?}]> : tensor<8x16xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"}
        (%arg1: tensor<4x16xf32>) {
      %3 = func.call @xla.sdy.manual_computation_body(%arg1) : (tensor<4x16xf32>) -> tensor<4x16xf32>
      sdy.return %3 : tensor<4x16xf32>
    } : (tensor<8x16xf32>) -> tensor<8x16xf32>
    sdy.sharding_group %1 group_id=21 : tensor<8x16xf32>
    %2 = sdy.propagation_barrier %1 allowed_direction=FORWARD : tensor<8x16xf32>
    return %2 : tensor<8x16xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%arg0: tensor<4x16xf32>) -> tensor<4x16xf32> {
    return %arg0 : tensor<4x16xf32>
  }
}
"""


SYMBOLS = r"""
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(%arg0: tensor<8x16xf32>
      {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22x\22}, {}]>"},
       mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
      -> (tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
      mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {?}]>]>"}}
      : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {has_side_effect = true, mhlo.frontend_attributes = {
      xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>",
      xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22}>"}} : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %2 = call @xla.sdy.manual_computation_body(%1) {mhlo.frontend_attributes = {inlineable = "false"}}
      : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %3 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%2) {has_side_effect = true, mhlo.frontend_attributes = {
      xla.sdy.manual_axes = "#sdy<manual_axes{\22x\22}>",
      xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>"}} : (tensor<4x16xf32>) -> tensor<8x16xf32>
    stablehlo.custom_call @xla.sdy.ShardingGroup(%3)
      {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.sharding_group_id = "21 : i64"}} : (tensor<8x16xf32>) -> ()
    %4 = stablehlo.custom_call @xla.sdy.PropagationBarrier(%3)
      {mhlo.frontend_attributes = {xla.sdy.allowed_direction = "1 : i32"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%4) {has_side_effect = true, mhlo.frontend_attributes = {
      xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22x\22}, {}]>]>"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %5 : tensor<8x16xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%arg0: tensor<4x16xf32>) -> tensor<4x16xf32> {
    return %arg0 : tensor<4x16xf32>
  }
}
"""
"""What XLA writes now: meshes as operations, the shardings of a manual computation at the calls around its body."""


@pytest.mark.parametrize("strings", [STRINGS, SYMBOLS], ids=["meshes as strings", "meshes as operations"])
def test_strings_read_as_operations(strings: str) -> None:
    module, expected = (mlir.parse(text, "input.mlir", mlir.context()) for text in (strings, OPERATIONS))
    notation = formats.find_notation(module)
    assert notation is not None
    assert notation.name == "sdy"
    sdy_frontend.to_operations(module)
    module.operation.verify()
    assert str(module) == str(expected)
    sdy.import_module(module)
    sdy.export_module(module)
    assert str(module) == str(expected)


def test_a_module_whose_only_strings_are_at_its_arguments_is_recognised() -> None:
    text = r"""
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%arg0: tensor<8xf32> {mhlo.frontend_attributes = {other = "1",
        xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22x\22}]>"}}) -> tensor<8xf32> { return %arg0 : tensor<8xf32> }"""
    module = mlir.parse(text, "input.mlir", mlir.context())
    sdy_frontend.to_operations(module)
    assert '{mhlo.frontend_attributes = {other = "1"}, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}' in str(module)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("@xla.sdy.GlobalToLocalShape", "@other", "with a value that no GlobalToLocalShape makes local"),
        ("@xla.sdy.LocalToGlobalShape", "@other", "LocalToGlobalShape does not take every result once"),
        ("xla.sdy.out_shardings", "xla.sdy.other", "calls the body of a manual computation without out_shardings"),
        ("call @xla.sdy.manual_computation_body", "call @body", "calls @xla.sdy.GlobalToLocalShape, which stands alone"),
        ('"#sdy<manual_axes', '"#sdy<banana', "carries xla.sdy.manual_axes = "),
        ('"21 : i64"', '""', "carries xla.sdy.sharding_group_id of 0 characters, which is not an attribute"),
        ('"21 : i64"', f'"{"[" * 10_000}"', "carries xla.sdy.sharding_group_id of 10000 characters, which is not an attribute"),
        ("xla.sdy.sharding_group_id", "xla.sdy.other", "carries xla.sdy.other, expected xla.sdy.sharding_group_id"),
        ('"#sdy.sharding<@mesh, [{', '"#sdy.mesh<[', "carries xla.sdy.sharding = "),
        ("return %5", "return %4", "says the sharding of a function's result, but nothing returns its value"),
        ("custom_call @xla.sdy.PropagationBarrier", "custom_call @other", "carries xla.sdy.allowed_direction, which is not read"),
    ],
)
@pytest.mark.parametrize("strings", [STRINGS, SYMBOLS], ids=["meshes as strings", "meshes as operations"])
def test_strings_that_do_not_hold_together(strings: str, old: str, new: str, message: str) -> None:
    text = strings.replace(old, new)
    if old.startswith("call"):
        text = text.replace("private @xla.sdy.manual_computation_body", "private @body")
    module = mlir.parse(text, "input.mlir", mlir.context())
    with pytest.raises(OpError, match=re.escape(message)):
        sdy.import_module(module)
