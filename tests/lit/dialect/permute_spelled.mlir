// RUN: mesh-opt %s --emit-spelling=llvm21 | filecheck %s
// RUN: mesh-opt %s --emit-spelling=llvm22 | filecheck %s --check-prefix=GRID
// LLVM has no permute; an all-gather and a slice along the same axes in the other order say the same.

mesh.mesh @m(shape = 2x4)

// CHECK:      %[[W:.*]] = mesh.all_gather %arg0 on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<4x3xf32> -> tensor<32x3xf32>
// CHECK-NEXT: mesh.all_slice %[[W]] on @m mesh_axes = [1, 0] slice_axis = 0 : tensor<32x3xf32> -> tensor<4x3xf32>
// GRID:       shard.all_gather %arg0 on @m grid_axes = [0, 1]
// GRID-NEXT:  shard.all_slice {{.*}} grid_axes = [1, 0]
func.func @f(%a: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %0 = mesh.permute %a on @m mesh_axes = [0, 1] target_axes = [1, 0] : tensor<4x3xf32> -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
