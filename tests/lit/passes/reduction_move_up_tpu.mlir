// RUN: mesh-opt %s --reduction-move-up="transposes=false" | filecheck %s

mesh.mesh @m(shape = 2x4)

// A transpose stays before the sum, a reshape does not.
// CHECK-LABEL: func.func @transposed
// CHECK:         stablehlo.transpose
// CHECK-NEXT:    mesh.all_reduce
// CHECK-NEXT:    stablehlo.tanh
func.func @transposed(%x: tensor<4x8xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<8x4xf32> -> tensor<8x4xf32>
  %2 = stablehlo.tanh %1 : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @reshaped
// CHECK:         mesh.all_reduce %arg0
// CHECK:         stablehlo.reshape
// CHECK-NEXT:    stablehlo.tanh
func.func @reshaped(%x: tensor<4x8xf32>) -> tensor<32xf32> {
  %0 = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<32xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<32xf32> -> tensor<32xf32>
  %2 = stablehlo.tanh %1 : tensor<32xf32>
  return %2 : tensor<32xf32>
}
