// RUN: mesh-opt %s --mesh-resharding | filecheck %s
// The resharding spec, example by example; what it leaves as TODO included.

mesh.mesh @line(shape = 3)
mesh.mesh @grid(shape = 2x3)
mesh.mesh @cube(shape = 2x2x2)
mesh.mesh @wide(shape = 2x6)
mesh.mesh @three_by_four(shape = 3x4)
mesh.mesh @four(shape = 2x2x2x2)

// CHECK-LABEL: @order
// CHECK: mesh.permute {{.*}} on @grid mesh_axes = [0, 1] target_axes = [1, 0] : tensor<16xf32> -> tensor<16xf32>
func.func @order(%arg0: tensor<96xf32>) -> tensor<96xf32> {
  %from = mesh.sharding @grid split_axes = [[0, 1]] : !mesh.sharding
  %to = mesh.sharding @grid split_axes = [[1, 0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<96xf32>
  return %1 : tensor<96xf32>
}

// CHECK-LABEL: @inner_axis_to_replicated
// CHECK: %[[SHARD:.*]] = builtin.unrealized_conversion_cast {{.*}} : tensor<64x96xf32> to tensor<64x16xf32>
// CHECK: %[[WHOLE:.*]] = mesh.all_gather %[[SHARD]] on @grid mesh_axes = [1] gather_axis = 1 : tensor<64x16xf32> -> tensor<64x48xf32>
// CHECK: builtin.unrealized_conversion_cast %[[WHOLE]] : tensor<64x48xf32> to tensor<64x96xf32>
func.func @inner_axis_to_replicated(%arg0: tensor<64x96xf32>) -> tensor<64x96xf32> {
  %from = mesh.sharding @grid split_axes = [[], [0, 1]] : !mesh.sharding
  %to = mesh.sharding @grid split_axes = [[], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<64x96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<64x96xf32>
  return %1 : tensor<64x96xf32>
}

// CHECK-LABEL: @outer_axis_to_replicated
// CHECK: mesh.permute {{.*}} on @cube mesh_axes = [{{1, 2|2, 1}}] target_axes = [{{1, 2|2, 1}}]
// CHECK: mesh.all_gather {{.*}} on @cube mesh_axes = [1] gather_axis = 1
func.func @outer_axis_to_replicated(%arg0: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %from = mesh.sharding @cube split_axes = [[0], [1, 2]] : !mesh.sharding
  %to = mesh.sharding @cube split_axes = [[0], [2]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<64x128xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}

// CHECK-LABEL: @transpose
// CHECK-COUNT-4: stablehlo.collective_permute
// CHECK-NOT: all_gather
func.func @transpose(%arg0: tensor<96x96xf32>) -> tensor<96x96xf32> {
  %from = mesh.sharding @grid split_axes = [[0], [1]] : !mesh.sharding
  %to = mesh.sharding @grid split_axes = [[1], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<96x96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<96x96xf32>
  return %1 : tensor<96x96xf32>
}

// CHECK-LABEL: @other_dimension
// CHECK: mesh.all_to_all {{.*}} on @line mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<32x96xf32> -> tensor<96x32xf32>
func.func @other_dimension(%arg0: tensor<96x96xf32>) -> tensor<96x96xf32> {
  %from = mesh.sharding @line split_axes = [[0], []] : !mesh.sharding
  %to = mesh.sharding @line split_axes = [[], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<96x96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<96x96xf32>
  return %1 : tensor<96x96xf32>
}

// CHECK-LABEL: @partial_to_split
// CHECK: mesh.reduce_scatter {{.*}} on @grid mesh_axes = [1] {{.*}}scatter_axis = 1 : tensor<48x96xf32> -> tensor<48x32xf32>
func.func @partial_to_split(%arg0: tensor<96x96xf32>) -> tensor<96x96xf32> {
  %from = mesh.sharding @grid split_axes = [[0], []] partial = sum [1] : !mesh.sharding
  %to = mesh.sharding @grid split_axes = [[0], [1]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<96x96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<96x96xf32>
  return %1 : tensor<96x96xf32>
}

// CHECK-LABEL: @equal
// CHECK-NOT: unrealized_conversion_cast
func.func @equal(%arg0: tensor<96xf32>) -> tensor<96xf32> {
  %0 = mesh.sharding @grid split_axes = [[0]] : !mesh.sharding
  %1 = mesh.shard %arg0 to %0 : tensor<96xf32>
  %2 = mesh.shard %1 to %0 annotate_for_users : tensor<96xf32>
  return %2 : tensor<96xf32>
}

// CHECK-LABEL: @transpose_of_nested_blocks
// CHECK-COUNT-3: stablehlo.collective_permute
// CHECK-NOT: {{mesh.all_gather|mesh.all_to_all|collective_permute}}
func.func @transpose_of_nested_blocks(%arg0: tensor<96x96xf32>) -> tensor<96x96xf32> {
  %from = mesh.sharding @wide split_axes = [[0], [1]] : !mesh.sharding
  %to = mesh.sharding @wide split_axes = [[1], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<96x96xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<96x96xf32>
  return %1 : tensor<96x96xf32>
}

// CHECK-LABEL: @ceiling_division
// CHECK: builtin.unrealized_conversion_cast {{.*}} : tensor<160x230xf32> to tensor<54x58xf32>
// CHECK: stablehlo.collective_permute
// CHECK: builtin.unrealized_conversion_cast {{.*}} : tensor<40x77xf32> to tensor<160x230xf32>
func.func @ceiling_division(%arg0: tensor<160x230xf32>) -> tensor<160x230xf32> {
  %from = mesh.sharding @three_by_four split_axes = [[0], [1]] : !mesh.sharding
  %to = mesh.sharding @three_by_four split_axes = [[1], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<160x230xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<160x230xf32>
  return %1 : tensor<160x230xf32>
}

// The spec gathers last; at the lower bound every byte is sent once, before that.
// CHECK-LABEL: @decomposition
// CHECK-COUNT-4: stablehlo.collective_permute
// CHECK: = mesh.all_gather
// CHECK-NOT: {{mesh.all_gather|mesh.all_to_all|collective_permute}}
func.func @decomposition(%arg0: tensor<128x128x128xf32>) -> tensor<128x128x128xf32> {
  %from = mesh.sharding @four split_axes = [[3, 2], [], [0, 1]] : !mesh.sharding
  %to = mesh.sharding @four split_axes = [[0], [1, 2], []] : !mesh.sharding
  %0 = mesh.shard %arg0 to %from : tensor<128x128x128xf32>
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<128x128x128xf32>
  return %1 : tensor<128x128x128xf32>
}
