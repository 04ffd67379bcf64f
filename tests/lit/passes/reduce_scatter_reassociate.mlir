// RUN: mesh-opt %s --reduce-scatter-reassociate | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @sums
// CHECK-NEXT:    %[[A:.*]] = stablehlo.add %arg0, %arg1 : tensor<3x8xf32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.subtract %[[A]], %arg2 : tensor<3x8xf32>
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %[[B]] on @m mesh_axes = [1, 0] scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x1xf32>
// CHECK-NEXT:    return %[[R]]
func.func @sums(%x: tensor<3x8xf32>, %y: tensor<3x8xf32>, %z: tensor<3x8xf32>) -> tensor<3x1xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x1xf32>
  %1 = mesh.reduce_scatter %y on @m mesh_axes = [1, 0] scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x1xf32>
  %2 = mesh.reduce_scatter %z on @m mesh_axes = [1, 0] scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x1xf32>
  %3 = stablehlo.add %0, %1 : tensor<3x1xf32>
  %4 = stablehlo.subtract %3, %2 : tensor<3x1xf32>
  return %4 : tensor<3x1xf32>
}

// CHECK-LABEL: func.func @maxima
// CHECK-NEXT:    stablehlo.maximum %arg0, %arg1
// CHECK-NEXT:    mesh.reduce_scatter
// CHECK-NEXT:    return
func.func @maxima(%x: tensor<8xi32>, %y: tensor<8xi32>) -> tensor<2xi32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] reduction = max scatter_axis = 0 : tensor<8xi32> -> tensor<2xi32>
  %1 = mesh.reduce_scatter %y on @m mesh_axes = [1] reduction = max scatter_axis = 0 : tensor<8xi32> -> tensor<2xi32>
  %2 = stablehlo.maximum %0, %1 : tensor<2xi32>
  return %2 : tensor<2xi32>
}

// Another order of axes gives other pieces; another kind or use keeps them apart.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-6: mesh.reduce_scatter
// CHECK-NOT:     mesh.reduce_scatter
func.func @kept(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<1xf32>, tensor<2xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
  %1 = mesh.reduce_scatter %y on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
  %2 = stablehlo.add %0, %1 : tensor<1xf32>
  %3 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %4 = mesh.reduce_scatter %y on @m mesh_axes = [1] scatter_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %5 = stablehlo.maximum %3, %4 : tensor<2xf32>
  %6 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<8xf32> -> tensor<4xf32>
  %7 = mesh.reduce_scatter %y on @m mesh_axes = [0] scatter_axis = 0 : tensor<8xf32> -> tensor<4xf32>
  %8 = stablehlo.add %6, %7 : tensor<4xf32>
  return %2, %5, %6, %8 : tensor<1xf32>, tensor<2xf32>, tensor<4xf32>, tensor<4xf32>
}

// What is reduced along other dimensions is reduced first, and less is scattered.
// CHECK-LABEL: func.func @reduced
// CHECK:         %[[R:.*]] = stablehlo.reduce(%arg0 init: %{{.*}}) applies stablehlo.add across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:    mesh.reduce_scatter %[[R]] on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
func.func @reduced(%x: tensor<4x3xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x3xf32> -> tensor<2x3xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// Gradients of keys that heads of queries share: [heads of queries, keys], then [keys, heads of keys, queries for each].
// CHECK-LABEL: func.func @shared_keys
// CHECK:         %[[T:.*]] = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<6x8xf32>) -> tensor<8x6xf32>
// CHECK-NEXT:    %[[H:.*]] = stablehlo.reshape %[[T]] : (tensor<8x6xf32>) -> tensor<8x2x3xf32>
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reduce(%[[H]] init: %{{.*}}) applies stablehlo.add across dimensions = [2]
// CHECK-NEXT:    mesh.reduce_scatter %[[R]] on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x2xf32> -> tensor<2x2xf32>
func.func @shared_keys(%x: tensor<6x8xf32>) -> tensor<2x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<6x8xf32> -> tensor<6x2xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<6x2xf32>) -> tensor<2x6xf32>
  %2 = stablehlo.reshape %1 : (tensor<2x6xf32>) -> tensor<2x2x3xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x2x3xf32>, tensor<f32>) -> tensor<2x2xf32>
  return %3 : tensor<2x2xf32>
}

// Another reduction, the scattered dimension, other readers, and a reshape that puts it together with a major one stay.
// CHECK-LABEL: func.func @unreduced
// CHECK-COUNT-4: mesh.reduce_scatter %arg0
// CHECK-NOT:     mesh.reduce_scatter
func.func @unreduced(%x: tensor<8x4xf32>) -> (tensor<2xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2x4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %1 = stablehlo.reduce(%0 init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
  %2 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
  %6 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<8x4xf32> -> tensor<8x1xf32>
  %8 = stablehlo.reshape %6 : (tensor<8x1xf32>) -> tensor<4x2xf32>
  %9 = stablehlo.reduce(%8 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<4xf32>
  return %1, %3, %5, %4, %9 : tensor<2xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2x4xf32>, tensor<4xf32>
}

// A dimension of one stands before the scattered one.
// CHECK-LABEL: func.func @one_sequence
// CHECK:         %[[H:.*]] = stablehlo.reshape %arg0 : (tensor<1x8x6xf32>) -> tensor<1x8x2x3xf32>
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reduce(%[[H]] init: %{{.*}}) applies stablehlo.add across dimensions = [0, 3]
// CHECK-NEXT:    mesh.reduce_scatter %[[R]] on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x2xf32> -> tensor<2x2xf32>
func.func @one_sequence(%x: tensor<1x8x6xf32>) -> tensor<2x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<1x8x6xf32> -> tensor<1x2x6xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2x6xf32>) -> tensor<1x2x2x3xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 3] : (tensor<1x2x2x3xf32>, tensor<f32>) -> tensor<2x2xf32>
  return %2 : tensor<2x2xf32>
}
