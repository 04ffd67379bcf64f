// Mutations of options and of tensors' annotations, by a script in the transform dialect's own syntax.
// RUN: mesh-opt %s --mutate %S/Inputs/mutations.mlir | filecheck %s
// RUN: mesh-opt %s --mutate %S/Inputs/mutations.mlir -o %t.mlir
// RUN: mesh-opt %t.mlir --mutate %S/Inputs/mutations.mlir | filecheck %s
// RUN: meshbridge run %t.mlir --check | filecheck %s --check-prefix=RAN

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @main
// A second mutation of a tensor takes the place of the first.
// CHECK-NOT:   annotate_for_users
// CHECK:       %[[H:.*]] = stablehlo.dot_general %arg0, %arg1, {{.*}} {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}0], [], [1{{\]\]}}>}
// CHECK:       %[[T:.*]] = stablehlo.tanh %[[H]]
// CHECK:       %[[COLUMNS:.*]] = mesh.sharding @m split_axes = {{\[\[}}], [1{{\]\]}} : !mesh.sharding
// CHECK:       %[[USE:.*]] = mesh.shard %[[T]] to %[[COLUMNS]] annotate_for_users
// CHECK-NOT:   annotate_for_users
// CHECK:       %[[Y:.*]] = stablehlo.dot_general %[[USE]], %arg2
// CHECK:       %[[ROWS:.*]] = mesh.sharding @m split_axes = {{\[\[}}0], [{{\]\]}} : !mesh.sharding
// CHECK:       %[[DEFINED:.*]] = mesh.shard %[[Y]] to %[[ROWS]]
// CHECK-NOT:   mesh.shard
// CHECK:       return %[[DEFINED]]

// RAN: result 0: float32[8, 16] P('0', None)
func.func @main(%x: tensor<8x16xf32>, %up: tensor<16x32xf32>, %down: tensor<32x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = stablehlo.tanh %0 : tensor<8x32xf32>
  %2 = stablehlo.dot_general %1, %down, contracting_dims = [1] x [0] : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
