// RUN: mesh-opt %s --split-input-file --import-shardings --sharding-propagation | filecheck %s

// Two heads on four devices: the heads take half of the axis, what is inside of a head the other half.
// CHECK:         mesh.mesh @m(shape = 2x2x2) {meshbridge.axis_digits = array<i64: 1, 2>}
// CHECK-LABEL:   func.func @heads
// CHECK:         mesh.sharding @m split_axes = {{\[\[}}0], [1, 2]] : !mesh.sharding
// CHECK:         stablehlo.reshape %{{.*}} {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}0], [1], [2]]>}
// CHECK:         mesh.shard {{.*}} {meshbridge.replicated_axes = array<i16: 1, 2>} : tensor<6xf32>
mesh.mesh @m(shape = 2x4)

func.func @heads(%x: tensor<4x32xf32>, %y: tensor<6xf32>) -> (tensor<4x2x16xf32>, tensor<6xf32>) {
  %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<4x32xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x32xf32>) -> tensor<4x2x16xf32>
  %r = mesh.sharding @m split_axes = [[]] : !mesh.sharding
  %2 = mesh.shard %y to %r {meshbridge.replicated_axes = array<i16: 1>} : tensor<6xf32>
  return %1, %2 : tensor<4x2x16xf32>, tensor<6xf32>
}

// -----

// A merge asks as a split does, and one axis may be cut twice. Axes after it are counted on.
// CHECK:         mesh.mesh @m(shape = 2x2x2x3) {meshbridge.axis_digits = array<i64: 3, 1>, meshbridge.axis_names = ["x", "y"]}
// CHECK-LABEL:   func.func @merged
// CHECK:         %[[RESULT:.*]] = mesh.sharding @m split_axes = {{\[\[}}0, 1, 2], [3]] : !mesh.sharding
// CHECK:         stablehlo.reshape %{{.*}} {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}0], [1], [2], [3]]>}
mesh.mesh @m(shape = 8x3) {meshbridge.axis_names = ["x", "y"]}

func.func @merged(%x: tensor<2x2x4x3xf32>) -> tensor<16x3xf32> {
  %0 = stablehlo.reshape %x : (tensor<2x2x4x3xf32>) -> tensor<16x3xf32>
  %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
  %1 = mesh.shard %0 to %s annotate_for_users : tensor<16x3xf32>
  return %1 : tensor<16x3xf32>
}

// -----

// What a manual computation's sharding leaves unsaid of an axis, it leaves unsaid of the parts.
// CHECK-LABEL:   func.func @manual
// CHECK:         mesh.shard {{.*}}meshbridge.replicated_axes = array<i16: 1, 2>, {{.*}}source_attributes = {meshbridge.replicated_axes = array<i16: 1, 2>}
// CHECK:         } {meshbridge.manual_axes = array<i16: 0, 1, 2>, meshbridge.mesh = @m}
sdy.mesh @m = <["y"=2, "x"=4]>

func.func @manual(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}, %z: tensor<8xf32>) -> (tensor<2x4xf32>, tensor<8xf32>) {
  %0 = stablehlo.reshape %x : (tensor<8xf32>) -> tensor<2x4xf32>
  %1 = sdy.manual_computation(%z) in_shardings=[<@m, [{"y", ?}]>] out_shardings=[<@m, [{"y", ?}]>] manual_axes={"y", "x"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<2x4xf32>, tensor<8xf32>
}

// -----

// Eight heads fit four devices, three heads have no part of them: nothing is cut.
// CHECK:         mesh.mesh @m(shape = 2x4){{$}}
// CHECK-LABEL:   func.func @fits
mesh.mesh @m(shape = 2x4)

func.func @fits(%x: tensor<4x32xf32>, %y: tensor<4x24xf32>) -> (tensor<4x8x4xf32>, tensor<4x3x8xf32>) {
  %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<4x32xf32>
  %1 = mesh.shard %y to %s : tensor<4x24xf32>
  %2 = stablehlo.reshape %0 : (tensor<4x32xf32>) -> tensor<4x8x4xf32>
  %3 = stablehlo.reshape %1 : (tensor<4x24xf32>) -> tensor<4x3x8xf32>
  return %2, %3 : tensor<4x8x4xf32>, tensor<4x3x8xf32>
}

// -----

// Whoever names axes otherwise than in shardings goes along: a coordinate is one along each part.
// CHECK:         mesh.mesh @m(shape = 2x2) {meshbridge.axis_digits = array<i64: 2>}
// CHECK-LABEL:   func.func @coordinates
// CHECK:         %[[PARTS:.*]]:2 = mesh.process_multi_index on @m axes = [0, 1] : index, index
// CHECK-NEXT:    %[[OUTER:.*]] = arith.muli %[[PARTS]]#0, %{{.*}} : index
// CHECK-NEXT:    %[[WHOLE:.*]] = arith.addi %[[OUTER]], %[[PARTS]]#1 : index
// CHECK:         return %{{.*}}, %[[WHOLE]]
// CHECK-LABEL:   func.func @partitioned
// CHECK-SAME:    meshbridge.split_axes = #mesh.axisarray<{{\[\[}}0, 1]]>
// CHECK:         mesh.broadcast %{{.*}} on @m mesh_axes = [0, 1] root = [1, 1]
// CHECK:         "stablehlo.collective_permute"(%{{.*}}) <{channel_handle = {{.*}}, source_target_pairs = dense<{{\[\[}}0, 1], [1, 2], [2, 3], [3, 0]]>
mesh.mesh @m(shape = 4)

func.func @coordinates(%x: tensor<8xf32>) -> (tensor<2x4xf32>, index) {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8xf32>
  %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<2x4xf32>
  %2 = mesh.process_multi_index on @m axes = [0] : index
  return %1, %2 : tensor<2x4xf32>, index
}

func.func @partitioned(
    %x: tensor<2xf32> {meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[0]]>})
    -> tensor<2xf32> {
  %0 = mesh.broadcast %x on @m mesh_axes = [0] root = [3] : (tensor<2xf32>) -> tensor<2xf32>
  %1 = mesh.shift %0 on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate : tensor<2xf32> -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
