// An order of devices that transposes their digits: positions are arithmetic, and groups may name axes.
// REQUIRES: replica-group-mesh-axes
// RUN: mesh-opt %s --lower-collectives | filecheck %s --check-prefixes=CHECK,DENSE
// RUN: mesh-opt %s --lower-collectives=replica_groups=mesh-axes | filecheck %s --check-prefixes=CHECK,AXES

mesh.mesh @m(shape = 2x4) {meshbridge.device_ids = array<i64: 0, 2, 4, 6, 1, 3, 5, 7>}

// CHECK-LABEL: @all_gather
// DENSE: replica_groups = dense<{{\[\[}}0, 2, 4, 6], [1, 3, 5, 7]]>
// AXES: axes = [#stablehlo.axis_ref<name = "2@4">, #stablehlo.axis_ref<name = "2@2">]
func.func @all_gather(%x: tensor<2xf32>) -> tensor<8xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CHECK-LABEL: @all_slice
// CHECK:      %[[ID:.*]] = stablehlo.partition_id
// CHECK-NEXT: %[[DEVICE:.*]] = stablehlo.convert %[[ID]]
// CHECK-NEXT: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<i32>
// CHECK-NEXT: stablehlo.divide %[[DEVICE]], %[[TWO]]
func.func @all_slice(%x: tensor<8xf32>) -> tensor<2xf32> {
  %0 = mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
