// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @broadcast_0(
// CHECK: mesh.broadcast %arg0 on @m0 mesh_axes = [0, 1] root = [1, %arg1] : (tensor<4x8xf32>, index) -> tensor<4x8xf32>
func.func @broadcast_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %broadcast = mesh.broadcast %arg0 on @m0 mesh_axes = [0, 1] root = [1, %arg1] : (tensor<4x8xf32>, index) -> tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @broadcast_1(
// CHECK: mesh.broadcast %arg0 on @m0 root = [] : (tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @broadcast_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %broadcast = mesh.broadcast %arg0 on @m0 root = [] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}
