// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @all_gather_0(
// CHECK: mesh.all_gather %arg0 on @m0 mesh_axes = [1] gather_axis = 1 : tensor<4x8xf32> -> tensor<4x32xf32>
func.func @all_gather_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %all_gather = mesh.all_gather %arg0 on @m0 mesh_axes = [1] gather_axis = 1 : tensor<4x8xf32> -> tensor<4x32xf32>
  return
}

// CHECK-LABEL: func.func @all_gather_1(
// CHECK: mesh.all_gather %arg0 on @m0 gather_axis = 1 : tensor<4x8xf32> -> tensor<4x8xf32>
func.func @all_gather_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %all_gather = mesh.all_gather %arg0 on @m0 gather_axis = 1 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @all_gather_2(
// CHECK: mesh.all_gather %arg0 on @md mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<?x8xf32>
func.func @all_gather_2(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %all_gather = mesh.all_gather %arg0 on @md mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<?x8xf32>
  return
}
