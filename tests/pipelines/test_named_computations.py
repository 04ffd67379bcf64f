"""Programs in Shardy's MPMD dialect: their named computations are stages."""

from __future__ import annotations

import pytest

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, context, walk_all
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import build
from meshbridge.pipelines.marker import Marker, marker_of
from meshbridge.pipelines.named_computations import read_named_computations
from meshbridge.pipelines.proof import compose
from meshbridge.read.formats import TEXT, Program
from meshbridge.verification.verdict import verify

W, X, H = "tensor<8x8xf32>", "tensor<2x8xf32>", "tensor<4x2x8xf32>"

PROGRAM = f"""
func.func @main(%w1: {W}, %w2: {W}, %xs: {H}) -> ({W}, {W}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : {W}
  %r:6 = stablehlo.while(%i = %zero, %a = %none, %b = %none, %v1 = %w1, %v2 = %w2, %ys = %xs)
      : tensor<i32>, {W}, {W}, {W}, {W}, {H}
   cond {{
    %c = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %s = stablehlo.dynamic_slice %ys, %i, %zero, %zero, sizes = [1, 2, 8]
      : ({H}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
    %x = stablehlo.reshape %s : (tensor<1x2x8xf32>) -> {X}
    %h = mpmd.named_computation<"first"> (%x, %v1) (%p: {X}, %q: {W}) {{
      %t = stablehlo.dot_general %p, %q, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      mpmd.return %t : {X}
    }} : ({X}, {W}) -> {X}
    %y = mpmd.named_computation<"second"> (%h, %v2) (%p: {X}, %q: {W}) {{
      %t = stablehlo.dot_general %p, %q, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      mpmd.return %t : {X}
    }} : ({X}, {W}) -> {X}
    %g:2 = mpmd.named_computation<"second"(1)> (%y, %h, %v2) (%d: {X}, %p: {X}, %q: {W}) {{
      %t = stablehlo.dot_general %d, %q, contracting_dims = [1] x [1] : ({X}, {W}) -> {X}
      %u = stablehlo.dot_general %p, %d, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
      mpmd.return %t, %u : {X}, {W}
    }} : ({X}, {X}, {W}) -> ({X}, {W})
    %f = mpmd.named_computation<"first"(1)> (%g#0, %x) (%d: {X}, %p: {X}) {{
      %u = stablehlo.dot_general %p, %d, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
      mpmd.return %u : {W}
    }} : ({X}, {X}) -> {W}
    %m = stablehlo.add %a, %f : {W}
    %n = stablehlo.add %b, %g#1 : {W}
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %m, %n, %v1, %v2, %ys : tensor<i32>, {W}, {W}, {W}, {W}, {H}
  }}
  %o1 = stablehlo.subtract %w1, %r#1 : {W}
  %o2 = stablehlo.subtract %w2, %r#2 : {W}
  return %o1, %o2 : {W}, {W}
}}
"""


def test_named_computations_become_boundaries() -> None:
    module = mlir.parse(PROGRAM, "-", context())
    read_named_computations(module)
    module.operation.verify()
    markers = [marker for op in walk_all(module) if (marker := marker_of(op)) is not None]
    assert markers == [Marker("second", "forward"), Marker("second", "backward")]
    assert not any(op.name.startswith("mpmd.") for op in walk_all(module))


def test_they_are_stages() -> None:
    module = mlir.parse(PROGRAM, "-", context())
    pipeline = build(Program(module, TEXT), Options.of(emit="local"), 2, "1f1b")
    assert {str(fragment.site) for fragment in pipeline.plan.fragments} >= {"forward0", "forward1", "backward0"}
    assert verify(pipeline.source.module, compose(pipeline)).equal
    assert "mpmd.named_computation" in str(module), "the given program is not changed"


def test_other_ops_are_refused() -> None:
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>>} {
      %0 = mpmd.assign %x : (tensor<2xf32>) -> !mpmd.mesh_tensor<"a", tensor<2xf32>>
      %1 = mpmd.unassign %0 : (!mpmd.mesh_tensor<"a", tensor<2xf32>>) -> tensor<2xf32>
      return %1 : tensor<2xf32>
    }
    """
    with pytest.raises(MeshError, match=r"'mpmd.assign' op is not read, only mpmd.named_computation is"):
        read_named_computations(mlir.parse(text, "-", context()))
