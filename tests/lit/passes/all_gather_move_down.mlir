// RUN: mesh-opt %s --all-gather-move-down | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @narrowed
// CHECK-NEXT:    %[[C:.*]] = stablehlo.convert %arg0 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
// CHECK-NEXT:    %[[S:.*]] = stablehlo.slice %[[C]] [0:2, 1:3]
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[S]], dims = [1, 0]
// CHECK-NEXT:    %[[R:.*]] = mesh.all_gather %[[T]] on @m mesh_axes = [1] gather_axis = 1 : tensor<2x2xbf16> -> tensor<2x8xbf16>
// CHECK-NEXT:    return %[[R]]
func.func @narrowed(%x: tensor<2x3xf32>) -> tensor<2x8xbf16> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
  %1 = stablehlo.convert %0 : (tensor<8x3xf32>) -> tensor<8x3xbf16>
  %2 = stablehlo.slice %1 [0:8, 1:3] : (tensor<8x3xbf16>) -> tensor<8x2xbf16>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x2xbf16>) -> tensor<2x8xbf16>
  return %3 : tensor<2x8xbf16>
}

// Several gathers become one; constants and broadcasts are made for a shard.
// CHECK-LABEL: func.func @joined
// CHECK:         stablehlo.add %arg0, %arg1 : tensor<2x3xf32>
// CHECK:         stablehlo.multiply {{.*}} : tensor<2x3xf32>
// CHECK:         stablehlo.maximum {{.*}} : tensor<2x3xf32>
// CHECK:         stablehlo.clamp {{.*}} : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
// CHECK-NEXT:    %[[R:.*]] = mesh.all_gather {{.*}} mesh_axes = [1, 0] gather_axis = 0 : tensor<2x3xf32> -> tensor<16x3xf32>
// CHECK-NEXT:    return %[[R]]
func.func @joined(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<16x3xf32> {
  %c = stablehlo.constant dense<0.5> : tensor<16x3xf32>
  %row = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %row, dims = [1] : (tensor<3xf32>) -> tensor<16x3xf32>
  %0 = mesh.all_gather %x on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<2x3xf32> -> tensor<16x3xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<2x3xf32> -> tensor<16x3xf32>
  %2 = stablehlo.add %0, %1 : tensor<16x3xf32>
  %3 = stablehlo.multiply %2, %c : tensor<16x3xf32>
  %4 = stablehlo.maximum %3, %b : tensor<16x3xf32>
  %5 = stablehlo.clamp %one, %4, %two : (tensor<f32>, tensor<16x3xf32>, tensor<f32>) -> tensor<16x3xf32>
  return %5 : tensor<16x3xf32>
}

// A reduction along another dimension.
// CHECK-LABEL: func.func @reduced
// CHECK:         stablehlo.reduce(%arg0 {{.*}} : (tensor<3x2xf32>, tensor<f32>) -> tensor<2xf32>
// CHECK-NEXT:    mesh.all_gather {{.*}} gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
func.func @reduced(%x: tensor<3x2xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 1 : tensor<3x2xf32> -> tensor<3x4xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// A reduction along the gathered dimension: of shards first, then over the devices.
// CHECK-LABEL: func.func @reduced_along
// CHECK:         %[[P:.*]] = stablehlo.reduce(%arg0 {{.*}} : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
// CHECK-NEXT:    %[[A:.*]] = mesh.all_reduce %[[P]] on @m mesh_axes = [0] : tensor<3xf32> -> tensor<3xf32>
// CHECK:         %[[Q:.*]] = stablehlo.reduce(%arg0
// CHECK-NEXT:    %[[B:.*]] = mesh.all_reduce %[[Q]] on @m mesh_axes = [0] reduction = <max> : tensor<3xf32> -> tensor<3xf32>
// CHECK-NEXT:    return %[[A]], %[[B]]
func.func @reduced_along(%x: tensor<2x3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x3xf32> -> tensor<4x3xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
  %2 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x3xf32> -> tensor<4x3xf32>
  %3 = stablehlo.reduce(%2 init: %lowest) applies stablehlo.maximum across dimensions = [0] : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %1, %3 : tensor<3xf32>, tensor<3xf32>
}

// Every second place, counted from the second on, of each shard as well as of the whole.
// CHECK-LABEL: func.func @strided
// CHECK-NEXT:    %[[S:.*]] = stablehlo.slice %arg0 [1:4:2] : (tensor<4xf32>) -> tensor<2xf32>
// CHECK-NEXT:    mesh.all_gather %[[S]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
func.func @strided(%x: tensor<4xf32>) -> tensor<8xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<4xf32> -> tensor<16xf32>
  %1 = stablehlo.slice %0 [1:16:2] : (tensor<16xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// What all devices of a group hold alike is cut to the shard.
// CHECK-LABEL: func.func @cut
// CHECK:         %[[W:.*]] = mesh.all_reduce %arg1
// CHECK-NEXT:    %[[S:.*]] = mesh.all_slice %[[W]] on @m mesh_axes = [0] slice_axis = 0
// CHECK-NEXT:    %[[P:.*]] = stablehlo.multiply %arg0, %[[S]] : tensor<2xf32>
// CHECK-NEXT:    mesh.all_gather %[[P]]
func.func @cut(%x: tensor<2xf32>, %w: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %w on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  %2 = stablehlo.multiply %1, %0 : tensor<4xf32>
  return %2, %0 : tensor<4xf32>, tensor<4xf32>
}

// A wider result, another use, a value of each device's own, a slice that takes more of some shards, a reduction that does not
// start from nothing.
// CHECK-LABEL: func.func @kept
// CHECK:         %[[A:.*]] = mesh.all_gather %arg0
// CHECK-NEXT:    stablehlo.convert %[[A]]
// CHECK-NEXT:    %[[B:.*]] = mesh.all_gather %arg1
// CHECK-NEXT:    stablehlo.negate %[[B]]
// CHECK-NEXT:    %[[C:.*]] = mesh.all_gather %arg1
// CHECK-NEXT:    stablehlo.add %[[C]], %arg2
// CHECK-NEXT:    %[[D:.*]] = mesh.all_gather %arg1
// CHECK-NEXT:    stablehlo.slice %[[D]]
// CHECK-NEXT:    %[[E:.*]] = mesh.all_gather %arg1
// CHECK-NEXT:    stablehlo.reduce(%[[E]]
func.func @kept(%n: tensor<2xbf16>, %x: tensor<2xf32>, %own: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<3xf32>, tensor<1xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = mesh.all_gather %n on @m mesh_axes = [0] gather_axis = 0 : tensor<2xbf16> -> tensor<4xbf16>
  %1 = stablehlo.convert %0 : (tensor<4xbf16>) -> tensor<4xf32>
  %2 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  %3 = stablehlo.negate %2 : tensor<4xf32>
  %4 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  %5 = stablehlo.add %4, %own : tensor<4xf32>
  %6 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  %7 = stablehlo.slice %6 [0:3] : (tensor<4xf32>) -> tensor<3xf32>
  %8 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
  %9 = stablehlo.reduce(%8 init: %one) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %10 = stablehlo.reshape %9 : (tensor<f32>) -> tensor<1xf32>
  return %1, %2, %3, %5, %7, %10 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<3xf32>, tensor<1xf32>
}

// A norm in a wider type: what lies between is larger than what is gathered, what comes out is not, and of the factors, gathered
// too, nothing is left.
// CHECK-LABEL: func.func @norm
// CHECK-NOT:     mesh.all_
// CHECK:         stablehlo.convert %arg0 : (tensor<2x8xbf16>) -> tensor<2x8xf32>
// CHECK-NOT:     mesh.all_
// CHECK:         %[[Y:.*]] = stablehlo.convert {{.*}} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT:    %[[R:.*]] = mesh.all_gather %[[Y]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
// CHECK-NEXT:    return %[[R]]
func.func @norm(%x: tensor<2x8xbf16>) -> tensor<8x8xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
  %1 = stablehlo.convert %0 : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<8x8xf32>
  %3 = mesh.all_slice %2 on @m mesh_axes = [1] slice_axis = 0 : tensor<8x8xf32> -> tensor<2x8xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x8xf32>, tensor<f32>) -> tensor<2xf32>
  %5 = mesh.all_gather %4 on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
  %7 = stablehlo.multiply %1, %6 : tensor<8x8xf32>
  %8 = stablehlo.convert %7 : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  return %8 : tensor<8x8xbf16>
}

// Sums of squares of what is narrower than they are: reduced over the devices, nothing is gathered.
// CHECK-LABEL: func.func @squares
// CHECK-NOT:     mesh.all_gather
// CHECK:         %[[P:.*]] = stablehlo.reduce({{.*}} : (tensor<2x8xf32>, tensor<f32>) -> tensor<8xf32>
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %[[P]] on @m mesh_axes = [1] : tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    return %[[R]]
func.func @squares(%x: tensor<2x8xbf16>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
  %1 = stablehlo.convert %0 : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<8x8xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}

// Rows apart: shards stay pieces of the rows. Where a reshape is the last of a chain, the gather stays before it; and where a shard
// would be rows here and there.
// CHECK-LABEL: func.func @reshaped
// CHECK-NEXT:    %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<2x3x4xf32>) -> tensor<6x2x2xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh %[[A]] : tensor<6x2x2xf32>
// CHECK-NEXT:    %[[G:.*]] = mesh.all_gather %[[T]] on @m mesh_axes = [1] gather_axis = 0 : tensor<6x2x2xf32> -> tensor<24x2x2xf32>
// CHECK-NEXT:    stablehlo.reshape %[[G]] : (tensor<24x2x2xf32>) -> tensor<24x4xf32>
// CHECK-NEXT:    %[[B:.*]] = mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 1 : tensor<2x3x4xf32> -> tensor<2x12x4xf32>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.reshape %[[B]] : (tensor<2x12x4xf32>) -> tensor<24x4xf32>
// CHECK-NEXT:    stablehlo.tanh %[[C]] : tensor<24x4xf32>
func.func @reshaped(%x: tensor<2x3x4xf32>) -> (tensor<24x4xf32>, tensor<24x4xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3x4xf32> -> tensor<8x3x4xf32>
  %1 = stablehlo.reshape %0 : (tensor<8x3x4xf32>) -> tensor<24x2x2xf32>
  %2 = stablehlo.tanh %1 : tensor<24x2x2xf32>
  %3 = stablehlo.reshape %2 : (tensor<24x2x2xf32>) -> tensor<24x4xf32>
  %4 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1 : tensor<2x3x4xf32> -> tensor<2x12x4xf32>
  %5 = stablehlo.reshape %4 : (tensor<2x12x4xf32>) -> tensor<24x4xf32>
  %6 = stablehlo.tanh %5 : tensor<24x4xf32>
  return %3, %6 : tensor<24x4xf32>, tensor<24x4xf32>
}

// One of two chains that meet ends in less, the other does not: its gather stays, and serves both.
// CHECK-LABEL: func.func @half
// CHECK-DAG:     %[[Y:.*]] = mesh.all_gather %arg1 on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
// CHECK-DAG:     %[[N:.*]] = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xbf16>
// CHECK-DAG:     %[[S:.*]] = stablehlo.add %[[N]], %arg1 : tensor<2xbf16>
// CHECK-DAG:     mesh.all_gather %[[S]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
// CHECK-DAG:     stablehlo.convert %[[Y]] : (tensor<8xbf16>) -> tensor<8xf32>
func.func @half(%x: tensor<2xf32>, %y: tensor<2xbf16>) -> (tensor<8xf32>, tensor<8xbf16>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
  %2 = stablehlo.convert %0 : (tensor<8xf32>) -> tensor<8xbf16>
  %3 = stablehlo.convert %1 : (tensor<8xbf16>) -> tensor<8xf32>
  %4 = stablehlo.add %2, %1 : tensor<8xbf16>
  return %3, %4 : tensor<8xf32>, tensor<8xbf16>
}

// Less would be gathered of both ends, but by two collectives.
// CHECK-LABEL: func.func @ends
// CHECK-NEXT:    %[[N:.*]] = stablehlo.negate %arg0 : tensor<2xf32>
// CHECK-NEXT:    %[[G:.*]] = mesh.all_gather %[[N]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
// CHECK-NEXT:    stablehlo.convert %[[G]] : (tensor<8xf32>) -> tensor<8xi1>
// CHECK-NEXT:    stablehlo.convert %[[G]] : (tensor<8xf32>) -> tensor<8xbf16>
func.func @ends(%x: tensor<2xf32>) -> (tensor<8xi1>, tensor<8xbf16>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %1 = stablehlo.negate %0 : tensor<8xf32>
  %2 = stablehlo.convert %1 : (tensor<8xf32>) -> tensor<8xi1>
  %3 = stablehlo.convert %1 : (tensor<8xf32>) -> tensor<8xbf16>
  return %2, %3 : tensor<8xi1>, tensor<8xbf16>
}

// What a loop hands on as it is, and a row of it that all devices count alike, is the same on all. What iterations change is left to
// delay-reductions, whether it is or not.
// CHECK-LABEL: func.func @carried
// CHECK:         stablehlo.while
// CHECK:         } do {
// CHECK:         %[[W:.*]] = stablehlo.dynamic_slice
// CHECK:         %[[S:.*]] = mesh.all_slice %{{.*}} on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
// CHECK:         %[[P:.*]] = stablehlo.multiply %[[T:.*]], %[[S]] : tensor<2xf32>
// CHECK-NEXT:    %[[B:.*]] = mesh.all_gather %[[P]]
// CHECK-NEXT:    stablehlo.add %{{.*}}, %[[B]] : tensor<8xf32>
// CHECK-NEXT:    %[[X:.*]] = mesh.all_gather %[[T]]
// CHECK-NEXT:    stablehlo.multiply %[[X]], %{{.*}} : tensor<8xf32>
func.func @carried(%x: tensor<2xf32>, %v: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %rows = stablehlo.constant dense<2.0> : tensor<3x8xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<8xf32>
  %w = mesh.all_reduce %v on @m mesh_axes = [1] reduction = max : tensor<8xf32> -> tensor<8xf32>
  %stack = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<8xf32>) -> tensor<3x8xf32>
  %r:5 = stablehlo.while(%i = %zero, %table = %stack, %sum = %ones, %own = %ones, %t = %x) : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<2xf32>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %table, %i, %zero, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %flat = stablehlo.reshape %row : (tensor<1x8xf32>) -> tensor<8xf32>
    %a = mesh.all_gather %t on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    %b = stablehlo.multiply %a, %flat : tensor<8xf32>
    %next_sum = stablehlo.add %sum, %b : tensor<8xf32>
    %d = mesh.all_gather %t on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    %e = stablehlo.multiply %d, %own : tensor<8xf32>
    %next_own = stablehlo.add %e, %v : tensor<8xf32>
    %next_t = stablehlo.negate %t : tensor<2xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %table, %next_sum, %next_own, %next_t : tensor<i32>, tensor<3x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<2xf32>
  }
  return %r#2, %r#3 : tensor<8xf32>, tensor<8xf32>
}

// What can be gathered before the loop is not gathered in each iteration of something that the iteration computes; what is narrowed is.
// CHECK-LABEL: func.func @leaving
// CHECK:         } do {
// CHECK:         %[[C:.*]] = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xbf16>
// CHECK-NEXT:    %[[G:.*]] = mesh.all_gather %[[C]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
// CHECK:         stablehlo.multiply %[[G]], %{{.*}} : tensor<8xbf16>
func.func @leaving(%w: tensor<2xf32>, %x: tensor<8xbf16>) -> tensor<8xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %sum = %x) : tensor<i32>, tensor<8xbf16>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %a = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    %narrow = stablehlo.convert %a : (tensor<8xf32>) -> tensor<8xbf16>
    %count = stablehlo.convert %i : (tensor<i32>) -> tensor<bf16>
    %counts = stablehlo.broadcast_in_dim %count, dims = [] : (tensor<bf16>) -> tensor<8xbf16>
    %b = stablehlo.multiply %narrow, %counts : tensor<8xbf16>
    %next_sum = stablehlo.add %sum, %b : tensor<8xbf16>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %next_sum : tensor<i32>, tensor<8xbf16>
  }
  return %r#1 : tensor<8xbf16>
}

// Of what is gathered, each device takes columns of all rows: they are exchanged, also after a reshape.
// CHECK-LABEL: func.func @exchanged
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reshape %arg0 : (tensor<2x3x8xf32>) -> tensor<6x8xf32>
// CHECK-NEXT:    mesh.all_to_all %[[R]] on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<6x8xf32> -> tensor<24x2xf32>
func.func @exchanged(%x: tensor<2x3x8xf32>) -> tensor<24x2xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3x8xf32> -> tensor<8x3x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<8x3x8xf32>) -> tensor<24x8xf32>
  %2 = mesh.all_slice %1 on @m mesh_axes = [1] slice_axis = 1 : tensor<24x8xf32> -> tensor<24x2xf32>
  return %2 : tensor<24x2xf32>
}
