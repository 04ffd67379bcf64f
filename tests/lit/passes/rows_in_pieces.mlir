// RUN: mesh-opt %s --rows-in-pieces='least=1' | filecheck %s
// RUN: mesh-opt %s --rows-in-pieces | filecheck %s --check-prefix=KEPT
// RUN: mesh-opt %s --rows-in-pieces='machine=v5p compiler-options=best least=1' | filecheck %s --check-prefix=PRICED

mesh.mesh @m(shape = 2x4)

// Pieces of each shard are gathered, multiplied and scattered; the residual is added to what they give together.
// CHECK-LABEL: func.func @layer
// CHECK:         %[[X:.*]] = stablehlo.slice %arg0 [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
// CHECK:         %[[G:.*]] = mesh.all_gather %[[X]] on @m mesh_axes = [1] gather_axis = 0 : tensor<1x4xf32> -> tensor<4x4xf32>
// CHECK:         %[[H:.*]] = stablehlo.dot_general %[[G]], %arg1
// CHECK:         %[[T:.*]] = stablehlo.tanh %[[H]] : tensor<4x6xf32>
// CHECK:         %[[P:.*]] = stablehlo.dot_general %[[T]], %arg2
// CHECK:         %[[Y:.*]] = mesh.reduce_scatter %[[P]] on @m mesh_axes = [1] scatter_axis = 0 : tensor<4x4xf32> -> tensor<1x4xf32>
// CHECK:         stablehlo.slice %arg0 [1:2, 0:4]
// CHECK:         %[[Z:.*]] = mesh.reduce_scatter
// CHECK:         %[[J:.*]] = stablehlo.concatenate %[[Y]], %[[Z]], dim = 0
// CHECK:         stablehlo.add %arg0, %[[J]] : tensor<2x4xf32>
// KEPT-LABEL: func.func @layer
// KEPT:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
// PRICED-LABEL: func.func @layer
// PRICED:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
func.func @layer(%x: tensor<2x4xf32>, %w: tensor<4x6xf32>, %v: tensor<6x4xf32>) -> tensor<2x4xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %2 = stablehlo.tanh %1 : tensor<8x6xf32>
  %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %4 = mesh.reduce_scatter %3 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %5 = stablehlo.add %x, %4 : tensor<2x4xf32>
  return %5 : tensor<2x4xf32>
}

// Two gathers meet in the gradients of weights, which are added up, and begin together; statistics are gathered inside.
// CHECK-LABEL: func.func @gradients
// CHECK-DAG:     mesh.all_gather {{.*}} : tensor<1x3x4xf32> -> tensor<4x3x4xf32>
// CHECK-DAG:     mesh.all_gather {{.*}} : tensor<1x3x6xf32> -> tensor<4x3x6xf32>
// CHECK-DAG:     mesh.all_gather {{.*}} : tensor<1x3xf32> -> tensor<4x3xf32>
// CHECK:         %[[W:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [0, 1] x [0, 1] : (tensor<4x3x4xf32>, tensor<4x3x6xf32>) -> tensor<4x6xf32>
// CHECK:         mesh.reduce_scatter {{.*}} : tensor<4x3x4xf32> -> tensor<1x3x4xf32>
// CHECK:         %[[V:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [0, 1] x [0, 1]
// CHECK:         stablehlo.add %[[W]], %[[V]] : tensor<4x6xf32>
// CHECK:         stablehlo.concatenate {{.*}} dim = 0 : (tensor<1x3x4xf32>, tensor<1x3x4xf32>) -> tensor<2x3x4xf32>
func.func @gradients(%x: tensor<2x3x4xf32>, %dy: tensor<2x3x6xf32>, %s: tensor<2x3xf32>, %w: tensor<4x6xf32>)
    -> (tensor<4x6xf32>, tensor<2x3x4xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3x4xf32> -> tensor<8x3x4xf32>
  %1 = mesh.all_gather %s on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<8x3xf32>) -> tensor<8x3x4xf32>
  %3 = stablehlo.multiply %0, %2 : tensor<8x3x4xf32>
  %4 = mesh.all_gather %dy on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3x6xf32> -> tensor<8x3x6xf32>
  %5 = stablehlo.dot_general %3, %4, contracting_dims = [0, 1] x [0, 1] : (tensor<8x3x4xf32>, tensor<8x3x6xf32>) -> tensor<4x6xf32>
  %6 = stablehlo.dot_general %4, %w, contracting_dims = [2] x [1] : (tensor<8x3x6xf32>, tensor<4x6xf32>) -> tensor<8x3x4xf32>
  %7 = mesh.reduce_scatter %6 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x3x4xf32> -> tensor<2x3x4xf32>
  return %5, %7 : tensor<4x6xf32>, tensor<2x3x4xf32>
}

// Tokens of experts: a row has another place after each all-to-all.
// CHECK-LABEL: func.func @experts
// CHECK:         mesh.all_to_all {{.*}} split_axis = 0 concat_axis = 1 : tensor<4x3x5xf32> -> tensor<1x12x5xf32>
// CHECK:         stablehlo.dot_general {{.*}} -> tensor<1x12x7xf32>
// CHECK:         mesh.all_to_all {{.*}} split_axis = 1 concat_axis = 0 : tensor<1x12x5xf32> -> tensor<4x3x5xf32>
// CHECK:         stablehlo.concatenate {{.*}} dim = 1 : (tensor<4x3x5xf32>, tensor<4x3x5xf32>) -> tensor<4x6x5xf32>
func.func @experts(%x: tensor<4x6x5xf32>, %w: tensor<1x5x7xf32>, %v: tensor<1x7x5xf32>) -> tensor<4x6x5xf32> {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<4x6x5xf32> -> tensor<1x24x5xf32>
  %1 = stablehlo.dot_general %0, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x5xf32>, tensor<1x5x7xf32>) -> tensor<1x24x7xf32>
  %2 = stablehlo.dot_general %1, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x7xf32>, tensor<1x7x5xf32>) -> tensor<1x24x5xf32>
  %3 = mesh.all_to_all %2 on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<1x24x5xf32> -> tensor<4x6x5xf32>
  return %3 : tensor<4x6x5xf32>
}

// What reads all rows would have to read a large value joined, and ends the segment.
// CHECK-LABEL: func.func @mixed
// CHECK:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
func.func @mixed(%x: tensor<2x4xf32>, %w: tensor<4x6xf32>, %u: tensor<4x6xf32>, %v: tensor<6x4xf32>)
    -> (tensor<2x4xf32>, tensor<2x6xf32>) {
  %c = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x6xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
  %4 = stablehlo.divide %1, %3 : tensor<8x6xf32>
  %5 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
  %6 = mesh.reduce_scatter %5 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %7 = stablehlo.dot_general %0, %u, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %8 = mesh.reduce_scatter %7 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x6xf32> -> tensor<2x6xf32>
  return %6, %8 : tensor<2x4xf32>, tensor<2x6xf32>
}

// Nothing divides: odd rows, a reduction of others, no collective after the product.
// CHECK-LABEL: func.func @odd
// CHECK:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x5xf32> -> tensor<12x5xf32>
func.func @odd(%x: tensor<3x5xf32>, %w: tensor<5x5xf32>) -> tensor<3x5xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3x5xf32> -> tensor<12x5xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<12x5xf32>, tensor<5x5xf32>) -> tensor<12x5xf32>
  %2 = mesh.reduce_scatter %1 on @m mesh_axes = [1] scatter_axis = 0 : tensor<12x5xf32> -> tensor<3x5xf32>
  return %2 : tensor<3x5xf32>
}

// CHECK-LABEL: func.func @open
// CHECK:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x5xf32> -> tensor<8x5xf32>
func.func @open(%x: tensor<2x5xf32>, %w: tensor<5x5xf32>) -> tensor<8x5xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x5xf32> -> tensor<8x5xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x5xf32>, tensor<5x5xf32>) -> tensor<8x5xf32>
  return %1 : tensor<8x5xf32>
}

// Rows of two dimensions become one, and other dimensions of them again; a constant is made in the size of a piece.
// CHECK-LABEL: func.func @flattened
// CHECK:         mesh.all_gather {{.*}} : tensor<3x1x4xf32> -> tensor<3x4x4xf32>
// CHECK:         stablehlo.reshape {{.*}} : (tensor<3x4x4xf32>) -> tensor<12x4xf32>
// CHECK:         stablehlo.slice {{.*}} : (tensor<12x2x1x6xf32>) -> tensor<12x1x1x6xf32>
// CHECK:         stablehlo.slice {{.*}} : (tensor<12x6xf32>) -> tensor<12x4xf32>
// CHECK:         mesh.reduce_scatter {{.*}} : tensor<3x4x4xf32> -> tensor<3x1x4xf32>
// CHECK:         stablehlo.slice %arg0 [0:3, 1:2, 0:4]
// CHECK:         stablehlo.concatenate {{.*}} dim = 1 : (tensor<3x1x4xf32>, tensor<3x1x4xf32>) -> tensor<3x2x4xf32>
func.func @flattened(%x: tensor<3x2x4xf32>, %w: tensor<4x6xf32>, %b: tensor<3x8x6xf32>, %v: tensor<2x2x4xf32>) -> tensor<3x2x4xf32> {
  %half = stablehlo.constant dense<5.000000e-01> : tensor<24x4xf32>
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1 : tensor<3x2x4xf32> -> tensor<3x8x4xf32>
  %1 = stablehlo.reshape %0 : (tensor<3x8x4xf32>) -> tensor<24x4xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<24x4xf32>, tensor<4x6xf32>) -> tensor<24x6xf32>
  %3 = stablehlo.reshape %b : (tensor<3x8x6xf32>) -> tensor<24x6xf32>
  %4 = stablehlo.subtract %2, %3 : tensor<24x6xf32>
  %5 = stablehlo.slice %4 [0:24, 1:5] : (tensor<24x6xf32>) -> tensor<24x4xf32>
  %6 = stablehlo.multiply %5, %half : tensor<24x4xf32>
  %7 = stablehlo.reshape %6 : (tensor<24x4xf32>) -> tensor<3x8x2x2xf32>
  %8 = stablehlo.transpose %7, dims = [2, 1, 0, 3] : (tensor<3x8x2x2xf32>) -> tensor<2x8x3x2xf32>
  %9 = stablehlo.dot_general %8, %v, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x8x3x2xf32>, tensor<2x2x4xf32>) -> tensor<2x8x3x4xf32>
  %c = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %10 = stablehlo.reduce(%9 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2x8x3x4xf32>, tensor<f32>) -> tensor<8x3x4xf32>
  %11 = stablehlo.transpose %10, dims = [1, 0, 2] : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %12 = mesh.reduce_scatter %11 on @m mesh_axes = [1] scatter_axis = 1 : tensor<3x8x4xf32> -> tensor<3x2x4xf32>
  return %12 : tensor<3x2x4xf32>
}
