// RUN: mesh-opt %s --gather-rows | filecheck %s

mesh.mesh @m(shape = 2x4)

// Columns are exchanged for rows, which are gathered.
// CHECK-LABEL: func.func @columns
// CHECK:         %[[R:.*]] = mesh.all_to_all %arg0 on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<256x64xf32> -> tensor<64x256xf32>
// CHECK-NEXT:    %[[G:.*]] = mesh.all_gather %[[R]] on @m mesh_axes = [1] gather_axis = 0 : tensor<64x256xf32> -> tensor<256x256xf32>
// CHECK-NEXT:    return %[[G]]
func.func @columns(%x: tensor<256x64xf32>) -> tensor<256x256xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1 : tensor<256x64xf32> -> tensor<256x256xf32>
  return %0 : tensor<256x256xf32>
}

// A dimension in the middle, over both axes.
// CHECK-LABEL: func.func @middle
// CHECK:         mesh.all_to_all %arg0 on @m mesh_axes = [1, 0] split_axis = 0 concat_axis = 1 : tensor<16x2x3xf32> -> tensor<2x16x3xf32>
// CHECK-NEXT:    mesh.all_gather {{.*}} on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<2x16x3xf32> -> tensor<16x16x3xf32>
func.func @middle(%x: tensor<16x2x3xf32>) -> tensor<16x16x3xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1, 0] gather_axis = 1 : tensor<16x2x3xf32> -> tensor<16x16x3xf32>
  return %0 : tensor<16x16x3xf32>
}

// Columns that tiles of 128 do not divide are outermost in memory: what is gathered along them stays, and what is gathered along
// rows is exchanged for columns.
// CHECK-LABEL: func.func @padded
// CHECK:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 1 : tensor<256x25xf32> -> tensor<256x100xf32>
// CHECK-NEXT:    mesh.all_to_all %arg1 on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<64x100xf32> -> tensor<256x25xf32>
func.func @padded(%x: tensor<256x25xf32>, %y: tensor<64x100xf32>) -> (tensor<256x100xf32>, tensor<256x100xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1 : tensor<256x25xf32> -> tensor<256x100xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<64x100xf32> -> tensor<256x100xf32>
  return %0, %1 : tensor<256x100xf32>, tensor<256x100xf32>
}

// What stays: rows, what is in order already, what does not divide, and what something else reads.
// CHECK-LABEL: func.func @others
// CHECK-NOT:     mesh.all_to_all
func.func @others(%x: tensor<64x256xf32>, %y: tensor<1x64xf32>, %z: tensor<6x32xf32>, %w: tensor<64x64xf32>) -> (tensor<256x256xf32>, tensor<1x256xf32>, tensor<6x128xf32>, tensor<64x256xf32>, tensor<64x256xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<64x256xf32> -> tensor<256x256xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 1 : tensor<1x64xf32> -> tensor<1x256xf32>
  %2 = mesh.all_gather %z on @m mesh_axes = [1] gather_axis = 1 : tensor<6x32xf32> -> tensor<6x128xf32>
  %3 = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 1 : tensor<64x64xf32> -> tensor<64x256xf32>
  %4 = stablehlo.tanh %3 : tensor<64x256xf32>
  return %0, %1, %2, %3, %4 : tensor<256x256xf32>, tensor<1x256xf32>, tensor<6x128xf32>, tensor<64x256xf32>, tensor<64x256xf32>
}
