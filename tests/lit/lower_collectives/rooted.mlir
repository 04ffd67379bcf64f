// RUN: mesh-opt %s --lower-collectives | filecheck %s
// RUN: mesh-opt %s --lower-collectives=collective_broadcast=true | filecheck %s --check-prefix=ONE

mesh.mesh @m(shape = 2x4)

// A tree: device 2 to 3, then both to the other two.
// CHECK-LABEL: @broadcast
// CHECK: "stablehlo.collective_permute"(%arg0) {{.*}} source_target_pairs = dense<{{\[\[}}2, 3], [6, 7]]>
// CHECK: %[[TWO:.*]] = stablehlo.select
// CHECK: "stablehlo.collective_permute"(%[[TWO]]) {{.*}} source_target_pairs = dense<{{\[\[}}2, 0], [3, 1], [6, 4], [7, 5]]>
// ONE-LABEL: @broadcast
// ONE: "stablehlo.collective_broadcast"(%arg0) <{channel_handle = {{.*}}, replica_groups = dense<{{\[\[}}2, 3, 0, 1], [6, 7, 4, 5]]>
func.func @broadcast(%x: tensor<3xi8>) -> tensor<3xi8> {
  %0 = mesh.broadcast %x on @m mesh_axes = [1] root = [2] : (tensor<3xi8>) -> tensor<3xi8>
  return %0 : tensor<3xi8>
}

// A root that is an SSA constant is as good as one in the attribute.
// CHECK-LABEL: @broadcast_from_a_constant
// CHECK: source_target_pairs = dense<{{\[\[}}4, 0], [5, 1], [6, 2], [7, 3]]>
func.func @broadcast_from_a_constant(%x: tensor<3xi8>) -> tensor<3xi8> {
  %one = arith.constant 1 : index
  %0 = mesh.broadcast %x on @m mesh_axes = [0] root = [%one] : (tensor<3xi8>, index) -> tensor<3xi8>
  return %0 : tensor<3xi8>
}

// CHECK-LABEL: @broadcast_at_run_time
// CHECK-SAME: %arg1: tensor<i32>
// CHECK: %[[PADDED:.*]] = stablehlo.pad {{.*}} -> tensor<4xi8>
// CHECK: %[[KEPT:.*]] = stablehlo.optimization_barrier %[[PADDED]]
// CHECK: %[[ALL:.*]] = "stablehlo.all_to_all"(%[[KEPT]])
// CHECK: %[[PIECE:.*]] = stablehlo.dynamic_slice %[[ALL]], %arg1, sizes = [1]
// CHECK: "stablehlo.all_gather"(%[[PIECE]])
func.func @broadcast_at_run_time(%x: tensor<3xi8>, %root: index) -> tensor<3xi8> {
  %0 = mesh.broadcast %x on @m mesh_axes = [1] root = [%root] : (tensor<3xi8>, index) -> tensor<3xi8>
  return %0 : tensor<3xi8>
}

// Half of the pieces to device 2, then one from each to the next.
// CHECK-LABEL: @scatter
// CHECK: %[[FAR:.*]] = stablehlo.slice %arg0 [4:8]
// CHECK: "stablehlo.collective_permute"(%[[FAR]]) {{.*}} source_target_pairs = dense<{{\[\[}}0, 2], [4, 6]]>
// CHECK: "stablehlo.collective_permute"({{.*}}) {{.*}} source_target_pairs = dense<{{\[\[}}0, 1], [2, 3], [4, 5], [6, 7]]> {{.*}} (tensor<2xf32>) -> tensor<2xf32>
func.func @scatter(%x: tensor<8xf32>) -> tensor<2xf32> {
  %0 = mesh.scatter %x on @m mesh_axes = [1] scatter_axis = 0 root = [0] : (tensor<8xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CHECK-LABEL: @gather
// CHECK: "stablehlo.all_gather"(%arg0)
func.func @gather(%x: tensor<2xf32>) -> tensor<8xf32> {
  %0 = mesh.gather %x on @m mesh_axes = [1] gather_axis = 0 root = [3] : (tensor<2xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CHECK-LABEL: @reduce
// CHECK: "stablehlo.all_reduce"
// CHECK: stablehlo.multiply
func.func @reduce(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = mesh.reduce %x on @m mesh_axes = [1] reduction = product root = [3] : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
