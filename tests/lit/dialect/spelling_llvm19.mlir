// RUN: mesh-opt %s | filecheck %s
// RUN: mesh-opt %s --emit-spelling=llvm19 | filecheck %s --check-prefix=BACK

// CHECK: mesh.mesh @m(shape = 2x4)
mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @f
// BACK-LABEL: func.func @f
func.func @f(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[S:.*]] = mesh.sharding @m split_axes = {{\[\[}}0{{\]\]}} partial = max[1] : !mesh.sharding
  // CHECK: mesh.shard %arg0 to %[[S]] annotate_for_users : tensor<4x8xf32>
  // BACK: mesh.shard %arg0 to <@m, {{\[\[}}0{{\]\]}}, partial = max[1]> annotate_for_users : tensor<4x8xf32>
  %0 = mesh.shard %arg0 to <@m, [[0]], partial = max[1]> annotate_for_users : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
