// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @update_halo_0(
// CHECK: mesh.update_halo %arg0 on @m0 split_axes = {{\[\[}}], [1{{\]\]}} halo_sizes = [1, %arg2] : tensor<4x8xf32>
func.func @update_halo_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %0 = mesh.update_halo %arg0 on @m0 split_axes = [[], [1]] halo_sizes = [1, %arg2] : tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @update_halo_1(
// CHECK: mesh.update_halo %arg0 on @m0 split_axes = {{\[\[}}0{{\]\]}} : tensor<4x8xf32>
func.func @update_halo_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] : tensor<4x8xf32>
  return
}
