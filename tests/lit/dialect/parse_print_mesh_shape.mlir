// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @mesh_shape_0(
// CHECK: mesh.mesh_shape @m0 : index, index
func.func @mesh_shape_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %mesh_shape:2 = mesh.mesh_shape @m0 : index, index
  return
}

// CHECK-LABEL: func.func @mesh_shape_1(
// CHECK: mesh.mesh_shape @deep axes = [2, 0] : index, index
func.func @mesh_shape_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %mesh_shape:2 = mesh.mesh_shape @deep axes = [2, 0] : index, index
  return
}
