// RUN: mesh-opt %s --pass-pipeline='builtin.module(func.func(test-mesh-resharding-spmdization,canonicalize))' | filecheck %s

mesh.mesh @line(shape = 2)

// CHECK-LABEL: func.func @equal
// CHECK-SAME:      %[[X:.*]]: tensor<2xf32>
// CHECK-NEXT:    return %[[X]]
func.func @equal(%x: tensor<2xf32>) -> tensor<2xf32> {
  %s = mesh.sharding @line split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<2xf32>
  %1 = mesh.shard %0 to %s annotate_for_users : tensor<2xf32>
  return %1 : tensor<2xf32>
}

// CHECK-LABEL: func.func @split_whole
// CHECK-SAME:      %[[X:.*]]: tensor<3x14xf32>
// CHECK-NEXT:    %[[SLICE:.*]] = mesh.all_slice %[[X]] on @line mesh_axes = [0] slice_axis = 1 : tensor<3x14xf32> -> tensor<3x7xf32>
// CHECK-NEXT:    %[[CAST:.*]] = builtin.unrealized_conversion_cast %[[SLICE]] : tensor<3x7xf32> to tensor<3x14xf32>
// CHECK-NEXT:    return %[[CAST]]
func.func @split_whole(%x: tensor<3x14xf32>) -> tensor<3x14xf32> {
  %from = mesh.sharding @line split_axes = [[]] : !mesh.sharding
  %to = mesh.sharding @line split_axes = [[], [0]] : !mesh.sharding
  %0 = mesh.shard %x to %from : tensor<3x14xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<3x14xf32>
  return %1 : tensor<3x14xf32>
}

// Two uses that want different things of one definition.
// CHECK-LABEL: func.func @two_uses
// CHECK:         %[[SHARD:.*]] = builtin.unrealized_conversion_cast %{{.*}} : tensor<10x14xf32> to tensor<5x14xf32>
// CHECK:         mesh.all_to_all %{{.*}} on @line mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<5x14xf32> -> tensor<10x7xf32>
// CHECK:         mesh.all_gather %{{.*}} on @line mesh_axes = [0] gather_axis = 0 : tensor<5x14xf32> -> tensor<10x14xf32>
// CHECK-NOT:     mesh.shard
func.func @two_uses(%x: tensor<10x14xf32>) -> (tensor<10x14xf32>, tensor<10x14xf32>) {
  %rows = mesh.sharding @line split_axes = [[0]] : !mesh.sharding
  %columns = mesh.sharding @line split_axes = [[], [0]] : !mesh.sharding
  %whole = mesh.sharding @line split_axes = [[]] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<10x14xf32>
  %1 = mesh.shard %0 to %columns annotate_for_users : tensor<10x14xf32>
  %2 = mesh.shard %0 to %whole annotate_for_users : tensor<10x14xf32>
  return %1, %2 : tensor<10x14xf32>, tensor<10x14xf32>
}

// CHECK-LABEL: func.func @finish_sum
// CHECK:         mesh.all_reduce %{{.*}} on @line mesh_axes = [0] : tensor<10x14xf32> -> tensor<10x14xf32>
func.func @finish_sum(%x: tensor<10x14xf32>) -> tensor<10x14xf32> {
  %sum = mesh.sharding @line split_axes = [[]] partial = sum [0] : !mesh.sharding
  %whole = mesh.sharding @line split_axes = [[]] : !mesh.sharding
  %0 = mesh.shard %x to %sum : tensor<10x14xf32>
  %1 = mesh.shard %0 to %whole annotate_for_users : tensor<10x14xf32>
  return %1 : tensor<10x14xf32>
}

// An annotation without a pair stays as it is.
// CHECK-LABEL: func.func @alone
// CHECK:         mesh.shard %{{.*}} to %{{.*}} annotate_for_users
func.func @alone(%x: tensor<10xf32>) -> tensor<10xf32> {
  %s = mesh.sharding @line split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s annotate_for_users : tensor<10xf32>
  return %0 : tensor<10xf32>
}
