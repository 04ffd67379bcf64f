// RUN: mesh-opt %s --raise-collectives --split-input-file | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @kinds
// CHECK-NEXT:    mesh.all_reduce %arg0 on @m mesh_axes = [1] : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    mesh.all_reduce %arg0 on @m mesh_axes = [0, 1] reduction = <max> : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    mesh.all_gather %arg0 on @m mesh_axes = [0] gather_axis = 0 : tensor<8xf32> -> tensor<16xf32>
// CHECK-NEXT:    mesh.reduce_scatter %arg0 on @m mesh_axes = [1, 0] scatter_axis = 0 : tensor<8xf32> -> tensor<1xf32>
// CHECK-NEXT:    mesh.all_to_all %arg0 on @m mesh_axes = [1] split_axis = 0 concat_axis = 0 : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    mesh.shift %arg0 on @m mesh_axes = [1] shift_axis = 1 offset = 3 rotate : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    return
func.func @kinds(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<1xf32>, tensor<8xf32>, tensor<8xf32>) {
  // The members of a sum have no order.
  %0 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[1, 0, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}>
    : (tensor<8xf32>) -> tensor<16xf32>
  %3 = "stablehlo.reduce_scatter"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 4, 1, 5, 2, 6, 3, 7]]> : tensor<1x8xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<1xf32>
  %4 = "stablehlo.all_to_all"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64,
    replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}>
    : (tensor<8xf32>) -> tensor<8xf32>
  %5 = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2], [4, 7], [5, 4], [6, 5], [7, 6]]> : tensor<8x2xi64>}>
    : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1, %2, %3, %4, %5
    : tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<1xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// Groups that divide an axis, a body of two ops, replicas, and a permute of which nothing arrives somewhere.
// CHECK-LABEL: func.func @kept
// CHECK-NOT:     mesh.
// CHECK:         return
func.func @kept(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 2], [1, 3], [4, 6], [5, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    %r = stablehlo.negate %s : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [6, 7]]> : tensor<6x2xi64>}>
    : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1, %2, %3 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

// Logical device number 1 stands at position 4 of the mesh.
mesh.mesh @m(shape = 2x4) {meshbridge.device_ids = array<i64: 0, 2, 4, 6, 1, 3, 5, 7>}

// CHECK-LABEL: func.func @order_of_devices
// CHECK-NEXT:    mesh.all_gather %arg0 on @m mesh_axes = [0] gather_axis = 0 : tensor<8xf32> -> tensor<16xf32>
// CHECK-NEXT:    return
func.func @order_of_devices(%x: tensor<8xf32>) -> tensor<16xf32> {
  %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}>
    : (tensor<8xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @own_piece
// CHECK:         mesh.all_slice %arg0 on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
// CHECK:         stablehlo.dynamic_slice
func.func @own_piece(%x: tensor<8xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %four = stablehlo.constant dense<4> : tensor<ui32>
  %two = stablehlo.constant dense<2> : tensor<ui32>
  %one = stablehlo.constant dense<1> : tensor<ui32>
  %device = stablehlo.partition_id : tensor<ui32>
  %number = stablehlo.remainder %device, %four : tensor<ui32>
  %start = stablehlo.multiply %number, %two : tensor<ui32>
  %0 = stablehlo.dynamic_slice %x, %start, sizes = [2] : (tensor<8xf32>, tensor<ui32>) -> tensor<2xf32>
  %later = stablehlo.add %start, %one : tensor<ui32>
  %1 = stablehlo.dynamic_slice %x, %later, sizes = [2] : (tensor<8xf32>, tensor<ui32>) -> tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @placed
// CHECK:         %[[SUM:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0] : tensor<2xf32> -> tensor<2xf32>
// CHECK-NEXT:    mesh.all_gather %[[SUM]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
// CHECK-NEXT:    return
func.func @placed(%piece: tensor<2xf32>) -> tensor<8xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<8xf32>
  %four = stablehlo.constant dense<4> : tensor<ui32>
  %two = stablehlo.constant dense<2> : tensor<ui32>
  %device = stablehlo.partition_id : tensor<ui32>
  %number = stablehlo.remainder %device, %four : tensor<ui32>
  %start = stablehlo.multiply %number, %two : tensor<ui32>
  %0 = stablehlo.dynamic_update_slice %zeros, %piece, %start : (tensor<8xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<8xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0, 1] : tensor<8xf32> -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// What devices hold alike is multiplied instead of added up, over the axes along which they do; also what a loop hands on.
// CHECK-LABEL: func.func @alike
// CHECK:         %[[A:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0]
// CHECK:         %[[B:.*]] = mesh.all_reduce %[[A]] on @m mesh_axes = [1]
// CHECK:         stablehlo.multiply %[[B]], %{{.*}} : tensor<4xf32>
// CHECK:         stablehlo.while
// CHECK-NOT:     mesh.all_reduce
// CHECK:         return
func.func @alike(%y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = "stablehlo.all_reduce"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  %2:2 = stablehlo.while(%i = %zero, %c = %0) : tensor<i32>, tensor<4xf32>
  cond {
    %3 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %4 = "stablehlo.all_reduce"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %r = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %r : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<4xf32>
  }
  return %1, %2#1 : tensor<4xf32>, tensor<4xf32>
}
