// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @neighbors_linear_indices_0(
// CHECK: mesh.neighbors_linear_indices on @m0[%arg1, %arg1] split_axes = [1] : index, index
func.func @neighbors_linear_indices_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %down_linear_idx, %up_linear_idx = mesh.neighbors_linear_indices on @m0[%arg1, %arg1] split_axes = [1] : index, index
  return
}
