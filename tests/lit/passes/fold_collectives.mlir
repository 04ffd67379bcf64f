// RUN: mesh-opt %s --fold-collectives | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @reduced
// CHECK-NEXT:    %[[A:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0, 1] : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    return %[[A]]
func.func @reduced(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
  %1 = mesh.all_gather %0 on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<1xf32> -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// The axis that is gathered last is the outermost, the one that is scattered first as well.
// CHECK-LABEL: func.func @twice
// CHECK-NEXT:    %[[A:.*]] = mesh.all_gather %arg0 on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<8xf32> -> tensor<64xf32>
// CHECK-NEXT:    %[[B:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
// CHECK-NEXT:    return %[[A]], %[[B]]
func.func @twice(%x: tensor<8xf32>) -> (tensor<64xf32>, tensor<1xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<8xf32> -> tensor<32xf32>
  %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<32xf32> -> tensor<64xf32>
  %2 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %3 = mesh.reduce_scatter %2 on @m mesh_axes = [0] scatter_axis = 0 : tensor<2xf32> -> tensor<1xf32>
  return %1, %3 : tensor<64xf32>, tensor<1xf32>
}

// A slice takes what it needs: all of one shard, a part of the group, an exchange, or a piece that is then gathered.
// CHECK-LABEL: func.func @sliced
// CHECK-NEXT:    %[[B:.*]] = mesh.all_gather %arg0 on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
// CHECK-NEXT:    %[[C:.*]] = mesh.all_to_all %arg0 on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<4x8xf32> -> tensor<16x2xf32>
// CHECK-NEXT:    %[[S:.*]] = mesh.all_slice %arg0 on @m mesh_axes = [1] slice_axis = 1
// CHECK-NEXT:    %[[D:.*]] = mesh.all_gather %[[S]] on @m mesh_axes = [0] gather_axis = 0 : tensor<4x2xf32> -> tensor<8x2xf32>
// CHECK-NEXT:    return %arg0, %[[B]], %[[C]], %[[D]]
func.func @sliced(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<8x8xf32>, tensor<16x2xf32>, tensor<8x2xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<16x8xf32>
  %1 = mesh.all_slice %0 on @m mesh_axes = [1] slice_axis = 0 : tensor<16x8xf32> -> tensor<4x8xf32>
  %2 = mesh.all_gather %x on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<4x8xf32> -> tensor<32x8xf32>
  %3 = mesh.all_slice %2 on @m mesh_axes = [1] slice_axis = 0 : tensor<32x8xf32> -> tensor<8x8xf32>
  %4 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<16x8xf32>
  %5 = mesh.all_slice %4 on @m mesh_axes = [1] slice_axis = 1 : tensor<16x8xf32> -> tensor<16x2xf32>
  %6 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
  %7 = mesh.all_slice %6 on @m mesh_axes = [1] slice_axis = 1 : tensor<8x8xf32> -> tensor<8x2xf32>
  return %1, %3, %5, %7 : tensor<4x8xf32>, tensor<8x8xf32>, tensor<16x2xf32>, tensor<8x2xf32>
}

// There and back, and what all devices of a group hold already.
// CHECK-LABEL: func.func @nothing
// CHECK:         %[[A:.*]] = mesh.all_reduce %arg1 on @m mesh_axes = [0]
// CHECK-NEXT:    return %arg0, %[[A]], %[[A]]
func.func @nothing(%x: tensor<4x8xf32>, %y: tensor<4xf32>) -> (tensor<4x8xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<4x8xf32> -> tensor<16x2xf32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<16x2xf32> -> tensor<4x8xf32>
  %2 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %4 = mesh.all_slice %2 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  %5 = mesh.all_gather %4 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  return %1, %3, %5 : tensor<4x8xf32>, tensor<4xf32>, tensor<4xf32>
}

// Another order of axes, another use of the first, a slice of a value that differs by device.
// CHECK-LABEL: func.func @kept
// CHECK:         mesh.reduce_scatter
// CHECK-NEXT:    mesh.all_gather {{.*}} [1, 0]
// CHECK-NEXT:    mesh.reduce_scatter
// CHECK-NEXT:    mesh.all_gather
// CHECK-NEXT:    mesh.all_slice
// CHECK-NEXT:    mesh.all_gather
func.func @kept(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<1xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
  %1 = mesh.all_gather %0 on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<1xf32> -> tensor<8xf32>
  %2 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
  %3 = mesh.all_gather %2 on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<1xf32> -> tensor<8xf32>
  %4 = mesh.all_slice %x on @m mesh_axes = [0] slice_axis = 0 : tensor<8xf32> -> tensor<4xf32>
  %5 = mesh.all_gather %4 on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
  return %1, %2, %3, %5 : tensor<8xf32>, tensor<1xf32>, tensor<8xf32>, tensor<8xf32>
}
