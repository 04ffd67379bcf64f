// Groups name logical devices in the order of the mesh; positions are looked up. No digits say this order, so that groups are dense
// in either spelling.
// RUN: mesh-opt %s --lower-collectives | filecheck %s
// RUN: mesh-opt %s --lower-collectives=replica_groups=mesh-axes | filecheck %s

mesh.mesh @m(shape = 2x2) {meshbridge.device_ids = array<i64: 3, 1, 2, 0>}

// CHECK-LABEL: @all_gather
// CHECK: replica_groups = dense<{{\[\[}}3, 1], [2, 0]]>
func.func @all_gather(%x: tensor<2xf32>) -> tensor<4xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: @all_slice
// CHECK:      %[[ID:.*]] = stablehlo.partition_id
// CHECK-NEXT: %[[DEVICE:.*]] = stablehlo.convert %[[ID]]
// CHECK-NEXT: %[[POSITIONS:.*]] = stablehlo.constant dense<[3, 1, 2, 0]> : tensor<4xi32>
// CHECK-NEXT: stablehlo.dynamic_slice %[[POSITIONS]], %[[DEVICE]], sizes = [1]
func.func @all_slice(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = mesh.all_slice %x on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
