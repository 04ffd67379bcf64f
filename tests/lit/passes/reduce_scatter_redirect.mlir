// RUN: mesh-opt %s --reduce-scatter-redirect | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @directly
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x12xf32> -> tensor<2x12xf32>
// CHECK-NEXT:    return %[[R]]
func.func @directly(%x: tensor<8x12xf32>) -> tensor<2x12xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<8x12xf32> -> tensor<8x3xf32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<8x3xf32> -> tensor<2x12xf32>
  return %1 : tensor<2x12xf32>
}

// Gradients of keys that are scattered along heads, transposed, and rounded before they go back to where their tokens are.
// CHECK-LABEL: func.func @heads
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1, 0] scatter_axis = 1 : tensor<8x16x4xf32> -> tensor<8x2x4xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[R]], dims = [1, 0, 2] : (tensor<8x2x4xf32>) -> tensor<2x8x4xf32>
// CHECK-NEXT:    %[[N:.*]] = stablehlo.negate %[[T]]
// CHECK-NEXT:    %[[C:.*]] = stablehlo.convert %[[N]] : (tensor<2x8x4xf32>) -> tensor<2x8x4xbf16>
// CHECK-NEXT:    return %[[C]]
func.func @heads(%x: tensor<8x16x4xf32>) -> tensor<2x8x4xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<8x16x4xf32> -> tensor<1x16x4xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2] : (tensor<1x16x4xf32>) -> tensor<16x1x4xf32>
  %2 = stablehlo.negate %1 : tensor<16x1x4xf32>
  %3 = stablehlo.convert %2 : (tensor<16x1x4xf32>) -> tensor<16x1x4xbf16>
  %4 = mesh.all_to_all %3 on @m mesh_axes = [1, 0] split_axis = 0 concat_axis = 1 : tensor<16x1x4xbf16> -> tensor<2x8x4xbf16>
  return %4 : tensor<2x8x4xbf16>
}

// CHECK-LABEL: func.func @maxima
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [0] reduction = <max> scatter_axis = 0 : tensor<4x6xi32> -> tensor<2x6xi32>
// CHECK-NEXT:    return %[[R]]
func.func @maxima(%x: tensor<4x6xi32>) -> tensor<2x6xi32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] reduction = max scatter_axis = 1 : tensor<4x6xi32> -> tensor<4x3xi32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<4x3xi32> -> tensor<2x6xi32>
  return %1 : tensor<2x6xi32>
}

// Another order of axes gives other pieces; another dimension is not the scattered one; what something else reads, or is computed of
// two values, stays.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-4: mesh.all_to_all
// CHECK-NOT:     mesh.all_to_all
func.func @kept(%x: tensor<8x8x8xf32>, %y: tensor<8x4xf32>) -> (tensor<1x8x8xf32>, tensor<2x2x32xf32>, tensor<8x4xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0, 1] scatter_axis = 1 : tensor<8x8x8xf32> -> tensor<8x1x8xf32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [1, 0] split_axis = 0 concat_axis = 1 : tensor<8x1x8xf32> -> tensor<1x8x8xf32>
  %2 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<8x8x8xf32> -> tensor<8x2x8xf32>
  %3 = mesh.all_to_all %2 on @m mesh_axes = [1] split_axis = 0 concat_axis = 2 : tensor<8x2x8xf32> -> tensor<2x2x32xf32>
  %4 = stablehlo.slice %x [0:1, 0:8, 0:8] : (tensor<8x8x8xf32>) -> tensor<1x8x8xf32>
  %5 = stablehlo.reshape %4 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %6 = mesh.reduce_scatter %5 on @m mesh_axes = [0] scatter_axis = 1 : tensor<8x8xf32> -> tensor<8x4xf32>
  %7 = mesh.all_to_all %6 on @m mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<8x4xf32> -> tensor<4x8xf32>
  %8 = mesh.reduce_scatter %5 on @m mesh_axes = [0] scatter_axis = 1 : tensor<8x8xf32> -> tensor<8x4xf32>
  %9 = stablehlo.add %8, %y : tensor<8x4xf32>
  %10 = mesh.all_to_all %9 on @m mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<8x4xf32> -> tensor<4x8xf32>
  return %1, %3, %6, %7, %10 : tensor<1x8x8xf32>, tensor<2x2x32xf32>, tensor<8x4xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
