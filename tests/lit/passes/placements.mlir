// What is placed in the host's memory is resharded before, what comes back from there is resharded after.
// RUN: mesh-opt %s --mesh-spmdization | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @away
func.func @away(%x: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %rows = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %columns = mesh.sharding @m split_axes = [[], [1]] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  // CHECK: %[[SINE:.*]] = stablehlo.sine %arg0 : tensor<4x16xf32>
  %1 = stablehlo.sine %0 : tensor<8x16xf32>
  // CHECK-NOT: annotate_device_placement
  %2 = stablehlo.custom_call @annotate_device_placement(%1) {has_side_effect = true,
    mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK: %[[MOVED:.*]] = mesh.all_gather {{.*}} : tensor<4x4xf32> -> tensor<8x4xf32>
  // CHECK: %[[PLACED:.*]] = stablehlo.custom_call @annotate_device_placement(%[[MOVED]]) {{.*}}"pinned_host"{{.*}} -> tensor<8x4xf32>
  %3 = mesh.shard %2 to %columns annotate_for_users : tensor<8x16xf32>
  // CHECK: return %[[PLACED]], %[[PLACED]]
  return %3, %3 : tensor<8x16xf32>, tensor<8x16xf32>
}

// CHECK-LABEL: func.func @back
func.func @back(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %rows = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %whole = mesh.sharding @m split_axes = [[], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  // CHECK: %[[BACK:.*]] = stablehlo.custom_call @annotate_device_placement(%arg0) {{.*}} : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %1 = stablehlo.custom_call @annotate_device_placement(%0) {has_side_effect = true, meshbridge.sharding_option = #mesh.axisarray<[[], []]>,
    mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK: mesh.all_gather %[[BACK]]
  %2 = mesh.shard %1 to %whole annotate_for_users : tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
