// RUN: mesh-opt %s --lower-collectives | filecheck %s
// RUN: mesh-opt %s --lower-collectives=form=local | filecheck %s --check-prefix=LOCAL

mesh.mesh @m(shape = 2x4x3)

// Indices become tensors of i32, in signatures too.
// CHECK-LABEL: @multi_index() -> (tensor<i32>, tensor<i32>, tensor<i32>)
// CHECK: %[[ID:.*]] = stablehlo.partition_id : tensor<ui32>
// CHECK: %[[LINEAR:.*]] = stablehlo.convert %[[ID]]
// CHECK: %[[FIRST:.*]] = stablehlo.divide %[[LINEAR]]
// CHECK: %[[QUOTIENT:.*]] = stablehlo.divide %[[LINEAR]]
// CHECK: %[[SECOND:.*]] = stablehlo.remainder %[[QUOTIENT]]
// CHECK: %[[THIRD:.*]] = stablehlo.remainder %[[LINEAR]]
// CHECK: return %[[FIRST]], %[[SECOND]], %[[THIRD]]
// LOCAL-LABEL: @multi_index
// LOCAL: stablehlo.replica_id
func.func @multi_index() -> (index, index, index) {
  %0:3 = mesh.process_multi_index on @m : index, index, index
  return %0#0, %0#1, %0#2 : index, index, index
}

// CHECK-LABEL: @arithmetic(%arg0: tensor<i32>) -> tensor<1xi32>
// CHECK: %[[SUM:.*]] = stablehlo.add %{{.*}}, %arg0 : tensor<i32>
// CHECK: stablehlo.reshape %[[SUM]] : (tensor<i32>) -> tensor<1xi32>
func.func @arithmetic(%n: index) -> tensor<1xi32> {
  %0 = mesh.process_linear_index on @m : index
  %1 = arith.addi %0, %n : index
  %2 = arith.index_cast %1 : index to i32
  %3 = tensor.from_elements %2 : tensor<1xi32>
  return %3 : tensor<1xi32>
}

// CHECK-LABEL: @shape
// CHECK: stablehlo.constant dense<3> : tensor<i32>
// CHECK: stablehlo.constant dense<2> : tensor<i32>
func.func @shape() -> (index, index) {
  %0:2 = mesh.mesh_shape @m axes = [2, 0] : index, index
  return %0#0, %0#1 : index, index
}

// 10 rows in 4 shards: 3, 3, 3, 1. The sharding goes when nothing asks about it any more.
// CHECK-LABEL: @uneven
// CHECK-NOT: mesh.sharding
// CHECK: %[[ROWS:.*]] = stablehlo.clamp
// CHECK: %[[COLUMNS:.*]] = stablehlo.constant dense<5> : tensor<i32>
// CHECK: return %[[ROWS]], %[[COLUMNS]]
func.func @uneven(%device: index) -> (index, index) {
  %s = mesh.sharding @m split_axes = [[1], []] : !mesh.sharding
  %0:2 = mesh.shard_shape 10x5 %s %device : index, index
  return %0#0, %0#1 : index, index
}

// CHECK-LABEL: @neighbours
// CHECK: %[[NONE:.*]] = stablehlo.constant dense<-1> : tensor<i32>
// CHECK: %[[DOWN:.*]] = stablehlo.select %{{.*}}, %[[NONE]], %{{.*}}
// CHECK: %[[UP:.*]] = stablehlo.select %{{.*}}, %[[NONE]], %{{.*}}
// CHECK: return %[[DOWN]], %[[UP]]
func.func @neighbours(%i: index, %j: index, %k: index) -> (index, index) {
  %0:2 = mesh.neighbors_linear_indices on @m[%i, %j, %k] split_axes = [1] : index, index
  return %0#0, %0#1 : index, index
}

// LLVM 21's form: whole sizes and a multi-index. Device (1, 3, 0) has the last shard of the ten rows, one row and its halo.
// CHECK-LABEL: @shard_of_a_multi_index
// CHECK: %[[DEVICE:.*]] = stablehlo.constant dense<21> : tensor<i32>
// CHECK: %[[ROWS:.*]] = stablehlo.clamp
// CHECK: %[[WITH_HALO:.*]] = stablehlo.add %[[ROWS]]
// CHECK: return %[[WITH_HALO]]
func.func @shard_of_a_multi_index() -> (index, index) {
  %s = mesh.sharding @m split_axes = [[1], []] halo_sizes = [1, 2] : !mesh.sharding
  %0:2 = mesh.shard_shape dims = [10, 5] sharding = %s device = [1, 3, 0] : index, index
  return %0#0, %0#1 : index, index
}

// Scalars in general become tensors of rank 0.
// CHECK-LABEL: @scale(%arg0: tensor<4xf32>) -> tensor<2xf32>
// CHECK: %[[LINEAR:.*]] = stablehlo.convert %{{.*}} : (tensor<ui32>) -> tensor<i32>
// CHECK: stablehlo.dynamic_slice %arg0, %[[LINEAR]], sizes = [1]
// CHECK: %[[HALF:.*]] = stablehlo.constant dense<5.000000e-01> : tensor<f32>
// CHECK: %[[SCALED:.*]] = stablehlo.multiply %{{.*}}, %[[HALF]] : tensor<f32>
// CHECK: stablehlo.broadcast_in_dim %[[SCALED]], dims = [] : (tensor<f32>) -> tensor<2xf32>
func.func @scale(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = mesh.process_linear_index on @m : index
  %1 = tensor.extract %x[%0] : tensor<4xf32>
  %half = arith.constant 0.5 : f32
  %2 = arith.mulf %1, %half : f32
  %3 = tensor.splat %2 : tensor<2xf32>
  return %3 : tensor<2xf32>
}

// Tensors of indices are tensors of i32.
// CHECK-LABEL: @index_tensor(%arg0: tensor<2xi32>) -> (tensor<3xi32>, tensor<2xi32>)
// CHECK: %[[ALL:.*]] = stablehlo.concatenate {{.*}} -> tensor<3xi32>
// CHECK: return %[[ALL]], %arg0
func.func @index_tensor(%t: tensor<2xindex>) -> (tensor<3xindex>, tensor<2xi32>) {
  %0:3 = mesh.process_multi_index on @m : index, index, index
  %1 = tensor.from_elements %0#0, %0#1, %0#2 : tensor<3xindex>
  %2 = arith.index_cast %t : tensor<2xindex> to tensor<2xi32>
  return %1, %2 : tensor<3xindex>, tensor<2xi32>
}

// Offsets of a run: the difference of two entries of their table; the `?` is not needed.
// CHECK-LABEL: @offsets_of_a_run
// CHECK: %[[OFFSET:.*]] = stablehlo.convert %arg0 : (tensor<i64>) -> tensor<i32>
// CHECK: %[[TABLE:.*]] = stablehlo.concatenate {{.*}} -> tensor<3xi32>
// CHECK-COUNT-2: stablehlo.dynamic_slice %[[TABLE]]
// CHECK: stablehlo.subtract
func.func @offsets_of_a_run(%offset: i64, %device: index) -> index {
  %s = mesh.sharding @m split_axes = [[0]] sharded_dims_offsets = [0, %offset, 10] : !mesh.sharding
  %0 = mesh.shard_shape ? %s %device : index
  return %0 : index
}

// CHECK-LABEL: @index_constants() -> (tensor<2xi32>, tensor<3xi32>)
// CHECK-DAG: stablehlo.constant dense<[1, 7]> : tensor<2xi32>
// CHECK-DAG: stablehlo.constant dense<3> : tensor<3xi32>
func.func @index_constants() -> (tensor<2xindex>, tensor<3xindex>) {
  %0 = arith.constant dense<[1, 7]> : tensor<2xindex>
  %1 = arith.constant dense<3> : tensor<3xindex>
  return %0, %1 : tensor<2xindex>, tensor<3xindex>
}
