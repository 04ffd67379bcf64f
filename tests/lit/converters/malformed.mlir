// RUN: not meshbridge convert %s --to mesh 2>&1 | filecheck %s

// CHECK: malformed.mlir:6:10: error: 'sdy.manual_computation' op expected manual_axes in the order of the mesh, {"x", "y"}, found {"y", "x"}
sdy.mesh @m = <["x"=2, "y"=2]>
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@m, [{"x"}, {"y"}]>] out_shardings=[<@m, [{"x"}, {"y"}]>]
      manual_axes={"y", "x"} (%a: tensor<4x4xf32>) { sdy.return %a : tensor<4x4xf32> } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
