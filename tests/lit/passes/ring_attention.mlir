// RUN: mesh-opt %s --ring-attention | filecheck %s
// RUN: mesh-opt %s --ring-attention='steps=2' | filecheck %s --check-prefix=SMALL
// RUN: mesh-opt %s --ring-attention='machine=v5e' | filecheck %s --check-prefix=KEPT

mesh.mesh @m(shape = 2x4)

// Keys and values travel both ways. What is divided by the sum of exponentials is divided after the last shard.
// CHECK-LABEL: func.func @attention
// CHECK-NOT:     mesh.all_gather
// CHECK:         %[[OWN:.*]] = mesh.all_slice {{.*}} mesh_axes = [1] slice_axis = 0 : tensor<4xi32> -> tensor<1xi32>
// CHECK:         stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1] : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
// CHECK:         stablehlo.dot_general {{.*}}, %arg2, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
// CHECK:         %[[K:.*]] = mesh.shift %arg1 on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<3x8xf32>
// CHECK:         %[[V:.*]] = mesh.shift %arg2 on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<3x5xf32>
// CHECK:         stablehlo.dot_general %arg0, %[[K]]
// CHECK:         stablehlo.dot_general {{.*}}, %[[V]]
// CHECK:         mesh.shift %arg1 on @m mesh_axes = [1] shift_axis = 1 offset = -1 rotate
// CHECK:         mesh.shift %arg2 on @m mesh_axes = [1] shift_axis = 1 offset = -1 rotate
// CHECK:         stablehlo.optimization_barrier %[[K]], %[[V]], {{.*}} : tensor<3x8xf32>, tensor<3x5xf32>, tensor<2xf32>
// CHECK-COUNT-2: mesh.shift {{.*}} offset = 1 rotate
// CHECK-NOT:     mesh.shift
// CHECK:         stablehlo.divide {{.*}} : tensor<2x5xf32>
// CHECK-NEXT:    return
// SMALL-LABEL: func.func @attention
// SMALL-COUNT-2: mesh.all_gather
// KEPT-LABEL: func.func @attention
// KEPT-COUNT-2:  mesh.all_gather
func.func @attention(%q: tensor<2x8xf32>, %k: tensor<3x8xf32>, %v: tensor<3x5xf32>) -> tensor<2x5xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_gather %k on @m mesh_axes = [1] gather_axis = 0 : tensor<3x8xf32> -> tensor<12x8xf32>
  %1 = mesh.all_gather %v on @m mesh_axes = [1] gather_axis = 0 : tensor<3x5xf32> -> tensor<12x5xf32>
  %2 = stablehlo.dot_general %q, %0, contracting_dims = [1] x [1] : (tensor<2x8xf32>, tensor<12x8xf32>) -> tensor<2x12xf32>
  %3 = stablehlo.reduce(%2 init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<2x12xf32>, tensor<f32>) -> tensor<2xf32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<2xf32>) -> tensor<2x12xf32>
  %5 = stablehlo.subtract %2, %4 : tensor<2x12xf32>
  %6 = stablehlo.exponential %5 : tensor<2x12xf32>
  %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x12xf32>, tensor<f32>) -> tensor<2xf32>
  %8 = stablehlo.broadcast_in_dim %7, dims = [0] : (tensor<2xf32>) -> tensor<2x12xf32>
  %9 = stablehlo.divide %6, %8 : tensor<2x12xf32>
  %10 = stablehlo.dot_general %9, %1, contracting_dims = [1] x [0] : (tensor<2x12xf32>, tensor<12x5xf32>) -> tensor<2x5xf32>
  return %10 : tensor<2x5xf32>
}

// What else reads the weights would have them whole.
// CHECK-LABEL: func.func @weights
// CHECK-COUNT-2: mesh.all_gather
// CHECK-NOT:     mesh.shift
func.func @weights(%q: tensor<2x8xf32>, %k: tensor<3x8xf32>, %v: tensor<3x5xf32>) -> (tensor<2x5xf32>, tensor<2x12xf32>) {
  %0 = mesh.all_gather %k on @m mesh_axes = [1] gather_axis = 0 : tensor<3x8xf32> -> tensor<12x8xf32>
  %1 = mesh.all_gather %v on @m mesh_axes = [1] gather_axis = 0 : tensor<3x5xf32> -> tensor<12x5xf32>
  %2 = stablehlo.dot_general %q, %0, contracting_dims = [1] x [1] : (tensor<2x8xf32>, tensor<12x8xf32>) -> tensor<2x12xf32>
  %3 = stablehlo.exponential %2 : tensor<2x12xf32>
  %4 = stablehlo.dot_general %3, %1, contracting_dims = [1] x [0] : (tensor<2x12xf32>, tensor<12x5xf32>) -> tensor<2x5xf32>
  return %4, %3 : tensor<2x5xf32>, tensor<2x12xf32>
}
