// RUN: mesh-opt %s --mesh-spmdization=explain=true --mlir-print-debuginfo | filecheck %s

mesh.mesh @m(shape = 2x4)

// Each collective's location says which operation needed which operand how, or why a value is partial, and who asked for that. Of a
// sum it also says where the terms are made.
// CHECK-LABEL: func.func @reasons
// CHECK:         mesh.all_gather {{.*}} loc(#[[GATHER:.*]])
// CHECK:         mesh.all_reduce {{.*}} loc(#[[REDUCE:.*]])
// CHECK-DAG:   #[[GATHER]] = loc(fused<["operand 1 of dot_general at mesh_spmdization_explain.mlir:[[# @LINE + 8]] needs P(\221\22, None) but is sharded as P(\221\22, \220\22)", "your program gives the option"]>[#[[DOT:.*]])
// CHECK-DAG:   #[[REDUCE]] = loc(fused<["dot_general at mesh_spmdization_explain.mlir:[[# @LINE + 7]] contracts a split dimension: partial sum over 1; the annotation at mesh_spmdization_explain.mlir:[[# @LINE + 8]] needs P(None, None)", "your constraint at mesh_spmdization_explain.mlir:[[# @LINE + 8]]", array<i64: 0, 1>]>[#{{.*}}, #[[DOT]]
func.func @reasons(%x: tensor<8x16xf32>, %y: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %columns = mesh.sharding @m split_axes = [[], [1]] : !mesh.sharding
  %rows = mesh.sharding @m split_axes = [[1], [0]] : !mesh.sharding
  %whole = mesh.sharding @m split_axes = [[], []] : !mesh.sharding
  %0 = mesh.shard %x to %columns : tensor<8x16xf32>
  %1 = mesh.shard %y to %rows : tensor<16x4xf32>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] {meshbridge.sharding_option = #mesh.axisarray<[[], [], [1]]>} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = mesh.shard %2 to %whole annotate_for_users : tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
