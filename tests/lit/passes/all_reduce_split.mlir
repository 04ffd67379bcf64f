// RUN: mesh-opt %s --all-reduce-split | filecheck %s

mesh.mesh @m(shape = 2x4)

// Only a slice of the sum is wanted in the end. The other operand is cut where it stands.
// CHECK-LABEL: func.func @sliced
// CHECK:         %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x2xf32> -> tensor<2x2xf32>
// CHECK-NEXT:    %[[S:.*]] = mesh.all_reduce %[[R]] on @m mesh_axes = [0] : tensor<2x2xf32> -> tensor<2x2xf32>
// CHECK:         %[[T:.*]] = stablehlo.tanh %[[S]] : tensor<2x2xf32>
// CHECK:         %[[B:.*]] = mesh.all_slice %arg1 on @m mesh_axes = [1] slice_axis = 0
// CHECK:         %[[M:.*]] = stablehlo.multiply %[[T]], %[[B]] : tensor<2x2xf32>
// CHECK:         %[[P:.*]] = stablehlo.transpose %[[M]]
// CHECK-NEXT:    return %[[P]]
func.func @sliced(%x: tensor<8x2xf32>, %y: tensor<8x2xf32>) -> tensor<2x2xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<8x2xf32> -> tensor<8x2xf32>
  %1 = stablehlo.tanh %0 : tensor<8x2xf32>
  %2 = stablehlo.multiply %1, %y : tensor<8x2xf32>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %4 = mesh.all_slice %3 on @m mesh_axes = [1] slice_axis = 1 : tensor<2x8xf32> -> tensor<2x2xf32>
  return %4 : tensor<2x2xf32>
}

// A broadcast along other dimensions stands in between.
// CHECK-LABEL: func.func @broadcast
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8xf32> -> tensor<2xf32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.broadcast_in_dim %[[R]], dims = [1] : (tensor<2xf32>) -> tensor<3x2xf32>
// CHECK-NEXT:    return %[[B]]
func.func @broadcast(%x: tensor<8xf32>) -> tensor<3x2xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<8xf32> -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<8xf32>) -> tensor<3x8xf32>
  %2 = mesh.all_slice %1 on @m mesh_axes = [1] slice_axis = 1 : tensor<3x8xf32> -> tensor<3x2xf32>
  return %2 : tensor<3x2xf32>
}

// Along a dimension that is broadcast there is nothing to scatter.
// CHECK-LABEL: func.func @broadcast_along
// CHECK:         mesh.all_reduce
// CHECK:         mesh.all_slice
func.func @broadcast_along(%x: tensor<8x1xf32>) -> tensor<8x1xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<8x1xf32> -> tensor<8x1xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x4xf32>
  %2 = mesh.all_slice %1 on @m mesh_axes = [1] slice_axis = 1 : tensor<8x4xf32> -> tensor<8x1xf32>
  return %2 : tensor<8x1xf32>
}

// The same slice twice is one reduce-scatter.
// CHECK-LABEL: func.func @sliced_twice
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter
// CHECK-NEXT:    stablehlo.add %[[R]], %[[R]]
func.func @sliced_twice(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  %2 = mesh.all_slice %0 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  %3 = stablehlo.add %1, %2 : tensor<2xf32>
  return %3 : tensor<2xf32>
}

// A gather beside it does the gathering for both, whatever is computed of them.
// CHECK-LABEL: func.func @gathered
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<16xf32> -> tensor<2xf32>
// CHECK-NEXT:    %[[M:.*]] = stablehlo.multiply %[[R]], %arg1 : tensor<2xf32>
// CHECK-NEXT:    mesh.all_gather %[[M]] on @m mesh_axes = [1, 0] gather_axis = 0
func.func @gathered(%x: tensor<16xf32>, %y: tensor<2xf32>) -> tensor<16xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<16xf32> -> tensor<16xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<2xf32> -> tensor<16xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<16xf32>
  return %2 : tensor<16xf32>
}

// Sums over axes of which one holds the other.
// CHECK-LABEL: func.func @nested
// CHECK-NEXT:    %[[A:.*]] = mesh.all_reduce %arg1 on @m mesh_axes = [0]
// CHECK-NEXT:    %[[S:.*]] = stablehlo.subtract %arg0, %[[A]]
// CHECK-NEXT:    mesh.all_reduce %[[S]] on @m mesh_axes = [1]
func.func @nested(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// Both halves are needed: the whole is used, the slice is along other axes, the product is not a sum.
// CHECK-LABEL: func.func @kept
// CHECK-NOT:     mesh.reduce_scatter
// CHECK-COUNT-4: mesh.all_reduce
// CHECK-NOT:     mesh.reduce_scatter
func.func @kept(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>, tensor<1xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  %2 = mesh.all_slice %1 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  %3 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %4 = stablehlo.exponential %3 : tensor<4xf32>
  %5 = mesh.all_slice %4 on @m mesh_axes = [1] slice_axis = 0 : tensor<4xf32> -> tensor<1xf32>
  %6 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
  %7 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %8 = stablehlo.multiply %6, %7 : tensor<4xf32>
  return %1, %2, %5, %8 : tensor<4xf32>, tensor<2xf32>, tensor<1xf32>, tensor<4xf32>
}
