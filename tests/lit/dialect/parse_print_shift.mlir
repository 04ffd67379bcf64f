// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @shift_0(
// CHECK: mesh.shift %arg0 on @m0 mesh_axes = [0, 1] shift_axis = 1 offset = -2 rotate : tensor<4x8xf32> -> tensor<4x8xf32>
func.func @shift_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %shift = mesh.shift %arg0 on @m0 mesh_axes = [0, 1] shift_axis = 1 offset = -2 rotate : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @shift_1(
// CHECK: mesh.shift %arg0 on @m0 mesh_axes = [1] shift_axis = 1 offset = 1 {foo} : tensor<4x8xf32> -> tensor<4x8xf32>
func.func @shift_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %shift = mesh.shift %arg0 on @m0 mesh_axes = [1] shift_axis = 1 offset = 1 {foo} : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}
