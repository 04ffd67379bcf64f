// RUN: mesh-opt %s --mesh-spmdization | filecheck %s
// RUN: mesh-opt %s --mesh-spmdization=boundary | filecheck %s --check-prefix=BOUNDARY
// Values with halos, or with shards of sizes of their own.

mesh.mesh @four(shape = 4)
mesh.mesh @grid(shape = 2x4)

// Elementwise operations compute halos of halos, and make constants in their shape.
// CHECK-LABEL: func.func @elementwise(
// CHECK-SAME:      %[[X:.*]]: tensor<5x16xf32>) -> tensor<5x16xf32> {
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.tanh %[[X]] : tensor<5x16xf32>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.constant dense<2.0{{.*}}> : tensor<8x16xf32>
// CHECK:         %[[D:.*]] = stablehlo.broadcast_in_dim %{{.*}} : (tensor<f32>) -> tensor<5x16xf32>
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.multiply %[[Y]], %[[D]] : tensor<5x16xf32>
// CHECK-NEXT:    return %[[Z]]
// BOUNDARY-LABEL: func.func @elementwise(
// BOUNDARY-SAME:      tensor<2x16xf32> {meshbridge.global = tensor<8x16xf32>, meshbridge.mesh = @four,
// BOUNDARY:         mesh.update_halo {{.*}} halo_sizes = [2, 1] : tensor<5x16xf32>
// BOUNDARY:         %[[Z:.*]] = stablehlo.slice %{{.*}} [2:4, 0:16] : (tensor<5x16xf32>) -> tensor<2x16xf32>
// BOUNDARY-NEXT:    return %[[Z]] : tensor<2x16xf32>
func.func @elementwise(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %s = mesh.sharding @four split_axes = [[0]] halo_sizes = [2, 1] : !mesh.sharding
  %0 = mesh.shard %x to %s annotate_for_users : tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  %2 = mesh.shard %1 to %s : tensor<8x16xf32>
  %3 = mesh.shard %2 to %s annotate_for_users : tensor<8x16xf32>
  %c = stablehlo.constant dense<2.0> : tensor<8x16xf32>
  %4 = stablehlo.multiply %3, %c : tensor<8x16xf32>
  %5 = mesh.shard %4 to %s : tensor<8x16xf32>
  return %5 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @update(
// CHECK-SAME:      %[[X:.*]]: tensor<6x9xi64>) -> tensor<9x16xi64> {
// CHECK:         %[[P:.*]] = stablehlo.pad %[[X]], %{{.*}}, low = [1, 3], high = [2, 4], interior = [0, 0] : {{.*}} -> tensor<9x16xi64>
// CHECK-NEXT:    %[[Y:.*]] = mesh.update_halo %[[P]] on @grid split_axes = {{\[\[}}0], [1]] halo_sizes = [1, 2, 3, 4] : tensor<9x16xi64>
// CHECK-NEXT:    return %[[Y]]
func.func @update(%x: tensor<12x36xi64>) -> tensor<12x36xi64> {
  %s = mesh.sharding @grid split_axes = [[0], [1]] : !mesh.sharding
  %t = mesh.sharding @grid split_axes = [[0], [1]] halo_sizes = [1, 2, 3, 4] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<12x36xi64>
  %1 = mesh.shard %0 to %t annotate_for_users : tensor<12x36xi64>
  return %1 : tensor<12x36xi64>
}

// A reduction must not count what its neighbours have.
// CHECK-LABEL: func.func @reduced(
// CHECK-SAME:      %[[X:.*]]: tensor<5x16xf32>) -> tensor<16xf32> {
// CHECK:         %[[C:.*]] = stablehlo.slice %[[X]] [2:4, 0:16] : (tensor<5x16xf32>) -> tensor<2x16xf32>
// CHECK:         %[[R:.*]] = stablehlo.reduce(%[[C]]
// CHECK:         mesh.all_reduce %[[R]] on @four mesh_axes = [0]
func.func @reduced(%x: tensor<8x16xf32>) -> tensor<16xf32> {
  %s = mesh.sharding @four split_axes = [[0]] halo_sizes = [2, 1] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8x16xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %1 : tensor<16xf32>
}

// Every buffer is as long as the longest shard.
// CHECK-LABEL: func.func @offsets(
// CHECK-SAME:      %[[X:.*]]: tensor<4x5xf32>) -> tensor<4x5xf32> {
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.negate %[[X]] : tensor<4x5xf32>
// CHECK-NEXT:    return %[[Y]]
func.func @offsets(%x: tensor<4x14xf32>) -> tensor<4x14xf32> {
  %s = mesh.sharding @four split_axes = [[], [0]] sharded_dims_offsets = [0, 2, 5, 9, 14] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<4x14xf32>
  %1 = stablehlo.negate %0 : tensor<4x14xf32>
  %2 = mesh.shard %1 to %s : tensor<4x14xf32>
  return %2 : tensor<4x14xf32>
}
