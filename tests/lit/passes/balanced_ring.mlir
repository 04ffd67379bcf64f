// RUN: mesh-opt %s --ring-attention='balance=true' | filecheck %s
// RUN: mesh-opt %s --ring-attention | filecheck %s --check-prefix=PLAIN

mesh.mesh @m(shape = 2)

// Of four halves the last ones change places, of queries, keys and values, and of the largest scores and sums on their way back. Own
// keys take three products of halves, those of the other device two.
// CHECK-LABEL: func.func @causal
// CHECK-NOT:     mesh.all_gather
// CHECK-COUNT-3: stablehlo.collective_permute
// CHECK:         stablehlo.dot_general {{.*}} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x2xf32>
// CHECK-COUNT-2: mesh.shift {{.*}} rotate
// CHECK:         stablehlo.compare LT
// CHECK-NOT:     (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK-COUNT-2: stablehlo.collective_permute
// CHECK-NOT:     stablehlo.collective_permute
// PLAIN-LABEL: func.func @causal
// PLAIN-NOT:     stablehlo.collective_permute
// PLAIN:         (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
// PLAIN:         return
func.func @causal(%q: tensor<4x8xf32>, %k: tensor<4x8xf32>, %v: tensor<4x5xf32>) -> tensor<4x5xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %numbers = stablehlo.iota dim = 0 : tensor<2xi32>
  %number = mesh.all_slice %numbers on @m mesh_axes = [0] slice_axis = 0 : tensor<2xi32> -> tensor<1xi32>
  %device = stablehlo.reshape %number : (tensor<1xi32>) -> tensor<i32>
  %before = stablehlo.multiply %device, %four : tensor<i32>
  %begin = stablehlo.broadcast_in_dim %before, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
  %row = stablehlo.iota dim = 0 : tensor<4x8xi32>
  %position = stablehlo.add %row, %begin : tensor<4x8xi32>
  %key = stablehlo.iota dim = 1 : tensor<4x8xi32>
  %seen = stablehlo.compare GE, %position, %key, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
  %hidden = stablehlo.broadcast_in_dim %low, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %0 = mesh.all_gather %k on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
  %1 = mesh.all_gather %v on @m mesh_axes = [0] gather_axis = 0 : tensor<4x5xf32> -> tensor<8x5xf32>
  %2 = stablehlo.dot_general %q, %0, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.select %seen, %2, %hidden : tensor<4x8xi1>, tensor<4x8xf32>
  %4 = stablehlo.reduce(%3 init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %6 = stablehlo.subtract %3, %5 : tensor<4x8xf32>
  %7 = stablehlo.exponential %6 : tensor<4x8xf32>
  %8 = stablehlo.dot_general %7, %1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  return %8 : tensor<4x5xf32>
}
