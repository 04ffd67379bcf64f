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
