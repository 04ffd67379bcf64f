// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @process_multi_index_0(
// CHECK: mesh.process_multi_index on @m0 : index, index
func.func @process_multi_index_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %proc_linear_idx:2 = mesh.process_multi_index on @m0 : index, index
  return
}

// CHECK-LABEL: func.func @process_multi_index_1(
// CHECK: mesh.process_multi_index on @m0 axes = [1] : index
func.func @process_multi_index_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %proc_linear_idx = mesh.process_multi_index on @m0 axes = [1] : index
  return
}
