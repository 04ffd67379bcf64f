// RUN: mesh-opt %s --sharding-propagation --mesh-spmdization | filecheck %s

mesh.mesh @m(shape = 2x4)

// Two partial sums over the same shards are added first and reduced once.
// CHECK-LABEL: func.func @delayed
// CHECK:         %[[A:.*]] = stablehlo.dot_general {{.*}} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
// CHECK:         %[[B:.*]] = stablehlo.dot_general {{.*}} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
// CHECK:         %[[SUM:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK:         mesh.all_reduce %[[SUM]] on @m mesh_axes = [1]
// CHECK-NOT:     mesh.all_reduce
func.func @delayed(%x: tensor<8x16xf32>, %y: tensor<16x4xf32>, %z: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %columns = mesh.sharding @m split_axes = [[], [1]] : !mesh.sharding
  %rows = mesh.sharding @m split_axes = [[1], []] : !mesh.sharding
  %whole = mesh.sharding @m split_axes = [[], []] : !mesh.sharding
  %0 = mesh.shard %x to %columns : tensor<8x16xf32>
  %1 = mesh.shard %y to %rows : tensor<16x4xf32>
  %2 = mesh.shard %z to %rows : tensor<16x4xf32>
  %3 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %4 = stablehlo.dot_general %0, %2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %5 = stablehlo.add %3, %4 : tensor<8x4xf32>
  %6 = mesh.shard %5 to %whole annotate_for_users : tensor<8x4xf32>
  return %6 : tensor<8x4xf32>
}

// A reduction that starts from 3 counts it once, not once per shard, and not in the reduction itself, of which XLA may make several.
// CHECK-LABEL: func.func @initial_value
// CHECK:         %[[INIT:.*]] = stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<i1>, tensor<f32>
// CHECK:         %[[SUM:.*]] = stablehlo.reduce
// CHECK:         %[[SPREAD:.*]] = stablehlo.broadcast_in_dim %[[INIT]]
// CHECK:         stablehlo.add %[[SUM]], %[[SPREAD]]
// CHECK:         mesh.{{all_reduce|reduce_scatter}}
func.func @initial_value(%x: tensor<8x16xf32>) -> tensor<16xf32> {
  %rows = mesh.sharding @m split_axes = [[1], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  %c = stablehlo.constant dense<3.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %1 : tensor<16xf32>
}
