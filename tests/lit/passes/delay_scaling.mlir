// RUN: mesh-opt %s --delay-scaling | filecheck %s
// RUN: mesh-opt %s --delay-scaling='machine=v5p' | filecheck %s --check-prefix=TPU

mesh.mesh @m(shape = 2x4)

// The sum and what it divides are reduced in one element type, and neither waits for the other.
// CHECK-LABEL: func.func @attention
// CHECK:         %[[SUM:.*]] = stablehlo.reduce({{.*}} applies stablehlo.add
// CHECK:         %[[TOTAL:.*]] = mesh.all_reduce %[[SUM]] on @m mesh_axes = [1] : tensor<4xf32>
// CHECK:         %[[DOT:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x16xbf16>
// CHECK:         %[[WIDE:.*]] = stablehlo.convert %[[DOT]] : (tensor<4x16xbf16>) -> tensor<4x16xf32>
// CHECK:         %[[VALUES:.*]] = mesh.all_reduce %[[WIDE]] on @m mesh_axes = [1] : tensor<4x16xf32>
// CHECK:         stablehlo.divide %[[VALUES]]
// CHECK-NEXT:    stablehlo.convert {{.*}} -> tensor<4x16xbf16>
// CHECK-NEXT:    return
// TPU-LABEL: func.func @attention
// TPU:         stablehlo.divide {{.*}} : tensor<4x16xf32>
func.func @attention(%x: tensor<4x8xf32>, %v: tensor<8x16xbf16>) -> tensor<4x16xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %x : tensor<4x8xf32>
  %0 = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.divide %e, %2 : tensor<4x8xf32>
  %4 = stablehlo.convert %3 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %5 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [0] : (tensor<4x8xbf16>, tensor<8x16xbf16>) -> tensor<4x16xbf16>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [1] : tensor<4x16xbf16> -> tensor<4x16xbf16>
  return %6 : tensor<4x16xbf16>
}

// Of a sum that is scattered with the product a device needs a piece. XLA:TPU would not scatter both at once.
// CHECK-LABEL: func.func @scattered
// CHECK-NOT:     mesh.all_reduce
// CHECK:         mesh.reduce_scatter {{.*}} mesh_axes = [1] scatter_axis = 0 : tensor<4xf32> -> tensor<1xf32>
// CHECK:         mesh.reduce_scatter {{.*}} mesh_axes = [1] scatter_axis = 0 : tensor<4x16xf32> -> tensor<1x16xf32>
// CHECK:         stablehlo.divide {{.*}} : tensor<1x16xf32>
// TPU-LABEL: func.func @scattered
// TPU:         stablehlo.divide {{.*}} : tensor<4x8xf32>
func.func @scattered(%x: tensor<4x8xf32>, %v: tensor<8x16xf32>) -> tensor<1x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %x : tensor<4x8xf32>
  %0 = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.divide %e, %2 : tensor<4x8xf32>
  %4 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %5 = mesh.reduce_scatter %4 on @m mesh_axes = [1] scatter_axis = 0 : tensor<4x16xf32> -> tensor<1x16xf32>
  return %5 : tensor<1x16xf32>
}

// Over other devices than those that share the sum.
// CHECK-LABEL: func.func @other_devices
// CHECK:         stablehlo.divide {{.*}} : tensor<4x8xf32>
func.func @other_devices(%x: tensor<4x8xf32>, %v: tensor<8x16xf32>) -> tensor<4x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %x : tensor<4x8xf32>
  %0 = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.divide %e, %2 : tensor<4x8xf32>
  %4 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %5 = mesh.all_reduce %4 on @m mesh_axes = [1] : tensor<4x16xf32> -> tensor<4x16xf32>
  return %5 : tensor<4x16xf32>
}

// Terms of either sign: their sum may be zero, and is divided to an infinity where infinite terms add up to NaN.
// CHECK-LABEL: func.func @of_either_sign
// CHECK:         stablehlo.divide {{.*}} : tensor<4x8xf32>
func.func @of_either_sign(%x: tensor<4x8xf32>, %v: tensor<8x16xf32>) -> tensor<4x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.divide %x, %2 : tensor<4x8xf32>
  %4 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %5 = mesh.all_reduce %4 on @m mesh_axes = [1] : tensor<4x16xf32> -> tensor<4x16xf32>
  return %5 : tensor<4x16xf32>
}

// A mask may keep no term: the sum is zero, and would be divided to NaN.
// CHECK-LABEL: func.func @masked
// CHECK:         stablehlo.divide {{.*}} : tensor<4x8xf32>
func.func @masked(%x: tensor<4x8xf32>, %v: tensor<8x16xf32>, %mask: tensor<4x8xi1>) -> tensor<4x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %e = stablehlo.exponential %x : tensor<4x8xf32>
  %0 = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.divide %e, %2 : tensor<4x8xf32>
  %4 = stablehlo.select %mask, %3, %zeros : tensor<4x8xi1>, tensor<4x8xf32>
  %5 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [1] : tensor<4x16xf32> -> tensor<4x16xf32>
  return %6 : tensor<4x16xf32>
}
