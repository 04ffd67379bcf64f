// RUN: mesh-opt %s --largest-as-floats | filecheck %s

mesh.mesh @m(shape = 2x4)

// A softmax: what divides it is NaN with the maximum or without.
// CHECK-LABEL: func.func @softmax
// CHECK:         mesh.all_reduce {{.*}} reduction = <max> {meshbridge.nan_follows}
func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.exponential %3 : tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %7 = stablehlo.broadcast_in_dim %6, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %8 = stablehlo.divide %4, %7 : tensor<4x8xf32>
  return %8 : tensor<4x8xf32>
}

// The same with the sum of the devices along the other axis: these have other rows.
// CHECK-LABEL: func.func @other_rows
// CHECK-NOT:     nan_follows
func.func @other_rows(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.exponential %3 : tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %7 = stablehlo.broadcast_in_dim %6, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %8 = stablehlo.divide %4, %7 : tensor<4x8xf32>
  return %8 : tensor<4x8xf32>
}

// Each device on its own, before the maximum is applied; weights and values are reduced into pieces of rows, and divided there.
// CHECK-LABEL: func.func @online
// CHECK:         mesh.all_reduce {{.*}} reduction = <max> {meshbridge.nan_follows}
func.func @online(%x: tensor<4x8xf32>, %v: tensor<8x16xf32>) -> tensor<2x16xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.exponential %3 : tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %7 = stablehlo.subtract %0, %1 : tensor<4xf32>
  %8 = stablehlo.exponential %7 : tensor<4xf32>
  %9 = stablehlo.multiply %5, %8 : tensor<4xf32>
  %10 = stablehlo.broadcast_in_dim %8, dims = [0] : (tensor<4xf32>) -> tensor<4x16xf32>
  %11 = stablehlo.multiply %6, %10 : tensor<4x16xf32>
  %12 = mesh.reduce_scatter %9 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  %13 = mesh.reduce_scatter %11 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x16xf32> -> tensor<2x16xf32>
  %14 = stablehlo.broadcast_in_dim %12, dims = [0] : (tensor<2xf32>) -> tensor<2x16xf32>
  %15 = stablehlo.divide %13, %14 : tensor<2x16xf32>
  return %15 : tensor<2x16xf32>
}

// What is kept, is not NaN everywhere: the exponentials.
// CHECK-LABEL: func.func @kept
// CHECK-NOT:     nan_follows
func.func @kept(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.exponential %3 : tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %4, %6 : tensor<4x8xf32>, tensor<4xf32>
}

// A mask after the subtraction may hide the NaN from the sum.
// CHECK-LABEL: func.func @masked
// CHECK-NOT:     nan_follows
func.func @masked(%x: tensor<4x8xf32>, %mask: tensor<4x8xi1>) -> tensor<4xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.select %mask, %3, %zeros : tensor<4x8xi1>, tensor<4x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %6 : tensor<4xf32>
}
