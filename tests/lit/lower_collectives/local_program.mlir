// One device's program becomes a partitioned one: what its arguments and results are shards of is written down.
// RUN: mesh-opt %s --split-input-file --local-program | filecheck %s

mesh.mesh @m(shape = 2x4)
// Each device has shards of its own, one after the other along dimension 0; scalars become tensors of one element.
// CHECK-LABEL: func.func @own(
// CHECK-SAME:    %[[X:.*]]: tensor<2x3xf32> {meshbridge.global = tensor<16x3xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<{{\[\[}}0, 1], [{{\]\]}}>}
// CHECK-SAME:    %[[I:.*]]: tensor<1xi32> {meshbridge.global = tensor<8xi32>
// CHECK-SAME:    %[[S:.*]]: tensor<1xf32> {meshbridge.global = tensor<8xf32>
// CHECK-SAME:    -> (tensor<2x3xf32> {{.*}}, tensor<1xi32> {meshbridge.global = tensor<8xi32>{{.*}}, tensor<1xf32> {meshbridge.global = tensor<8xf32>
func.func @own(%x: tensor<2x3xf32>, %i: index, %s: tensor<f32>) -> (tensor<2x3xf32>, index, tensor<f32>) {
  // CHECK-DAG: %[[ZERO:.*]] = arith.constant 0 : index
  // CHECK-DAG: %[[E:.*]] = tensor.extract %[[I]][%[[ZERO]]] : tensor<1xi32>
  // CHECK-DAG: %[[INDEX:.*]] = arith.index_cast %[[E]] : i32 to index
  // CHECK-DAG: %[[R:.*]] = stablehlo.reshape %[[S]] : (tensor<1xf32>) -> tensor<f32>
  // CHECK: mesh.all_reduce %[[R]]
  %0 = mesh.all_reduce %s on @m mesh_axes = [1] : tensor<f32> -> tensor<f32>
  // CHECK: arith.addi %[[INDEX]], %[[INDEX]]
  %1 = arith.addi %i, %i : index
  // CHECK: tensor.from_elements %{{.*}} : tensor<1xi32>
  return %x, %1, %0 : tensor<2x3xf32>, index, tensor<f32>
}

// -----

// No mesh is declared: the groups name eight devices. Devices are numbered by partition, whatever the program says.
// CHECK: mesh.mesh @devices(shape = 8)
// CHECK-LABEL: func.func @groups
func.func @groups(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<ui32>) {
  // CHECK: all_reduce{{.*}}channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>{{.*}}dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7{{\]\]}}>{{.*}}use_global_device_ids
  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: stablehlo.partition_id
  %1 = stablehlo.replica_id : tensor<ui32>
  return %0, %1 : tensor<4xf32>, tensor<ui32>
}

// -----

// Groups that list nobody, and those that join all partitions of replica 0, are all devices.
// CHECK: mesh.mesh @devices(shape = 4)
module attributes {mhlo.num_partitions = 4 : i32} {
  // CHECK-LABEL: func.func @everybody
  func.func @everybody(%x: tensor<4xf32>) -> (tensor<16xf32>, tensor<16xf32>) {
    // CHECK-COUNT-2: replica_groups = dense<{{\[\[}}0, 1, 2, 3{{\]\]}}>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<> : tensor<0x0xi64>}> : (tensor<4xf32>) -> tensor<16xf32>
    %1 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<0> : tensor<1x1xi64>}> : (tensor<4xf32>) -> tensor<16xf32>
    return %0, %1 : tensor<16xf32>, tensor<16xf32>
  }
}
