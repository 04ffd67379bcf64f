// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @shard_0(
// CHECK: mesh.shard %arg0 to %arg3 : tensor<4x8xf32>
func.func @shard_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding_annotated = mesh.shard %arg0 to %arg3 : tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @shard_1(
// CHECK: mesh.shard %arg0 to %arg3 annotate_for_users {test.note = array<i64: 1>} : tensor<4x8xf32>
func.func @shard_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding_annotated = mesh.shard %arg0 to %arg3 annotate_for_users {test.note = array<i64: 1>} : tensor<4x8xf32>
  return
}
