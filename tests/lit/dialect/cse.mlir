// RUN: mesh-opt %s --cse | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @merges(
// CHECK: %[[S:.*]] = mesh.sharding
// CHECK-NOT: = mesh.sharding
// CHECK: %[[A:.*]] = mesh.shard %arg0 to %[[S]] : tensor
// CHECK-NEXT: %[[B:.*]] = mesh.shard %arg0 to %[[S]] annotate_for_users : tensor
// CHECK-NEXT: %[[R:.*]] = mesh.all_reduce %[[A]]
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[R]]
// CHECK-NEXT: return %[[N]], %[[N]], %[[B]]
func.func @merges(%arg0: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %t = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %s : tensor<8xf32>
  %1 = mesh.shard %arg0 to %t : tensor<8xf32>
  %2 = mesh.shard %arg0 to %t annotate_for_users : tensor<8xf32>
  %3 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %4 = mesh.all_reduce %1 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %5 = stablehlo.negate %3 : tensor<8xf32>
  %6 = stablehlo.negate %4 : tensor<8xf32>
  return %5, %6, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// The order of axes is the order of devices: [0, 1] is not [1, 0]. Messages are never merged.
// CHECK-LABEL: func.func @keeps(
// CHECK-COUNT-2: mesh.all_gather
// CHECK-COUNT-2: mesh.send
func.func @keeps(%arg0: tensor<8xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %0 = mesh.all_gather %arg0 on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<8xf32> -> tensor<64xf32>
  %1 = mesh.all_gather %arg0 on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<8xf32> -> tensor<64xf32>
  %2 = mesh.send %arg0 on @m mesh_axes = [0] destination = [1] : (tensor<8xf32>) -> tensor<8xf32>
  %3 = mesh.send %arg0 on @m mesh_axes = [0] destination = [1] : (tensor<8xf32>) -> tensor<8xf32>
  %4 = mesh.recv %arg0 on @m mesh_axes = [0] : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<64xf32>, tensor<64xf32>
}

// What an enclosing block has computed is known inside; what one branch computes is unknown to the other.
// CHECK-LABEL: func.func @regions(
// CHECK: %[[I:.*]] = mesh.process_linear_index
// CHECK-NEXT: scf.if
// CHECK-NEXT: scf.yield %[[I]]
// CHECK: mesh.process_multi_index
// CHECK: mesh.process_multi_index
func.func @regions(%arg0: i1) -> (index, index) {
  %0 = mesh.process_linear_index on @m : index
  %1 = scf.if %arg0 -> (index) {
    %2 = mesh.process_linear_index on @m : index
    scf.yield %2 : index
  } else {
    %3 = mesh.process_multi_index on @m axes = [0] : index
    scf.yield %3 : index
  }
  %4 = mesh.process_multi_index on @m axes = [0] : index
  return %1, %4 : index, index
}
