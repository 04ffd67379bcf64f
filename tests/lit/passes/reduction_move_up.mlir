// RUN: mesh-opt %s --reduction-move-up | filecheck %s

mesh.mesh @m(shape = 2x4)

// A constant scales after the sum, from either side.
// CHECK-LABEL: func.func @scaled
// CHECK:         %[[R:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    %[[S:.*]] = stablehlo.multiply %[[C:.*]], %[[R]] : tensor<4xf32>
// CHECK-NEXT:    %[[T:.*]] = mesh.all_reduce %arg1 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    %[[U:.*]] = stablehlo.divide %[[T]], %[[C]] : tensor<4xf32>
// CHECK-NEXT:    stablehlo.subtract %[[S]], %[[U]] : tensor<4xf32>
func.func @scaled(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<0.1> : tensor<4xf32>
  %0 = stablehlo.multiply %c, %x : tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.divide %y, %c : tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %4 = stablehlo.subtract %1, %3 : tensor<4xf32>
  return %4 : tensor<4xf32>
}

// One step at a time, up to what is no scaling.
// CHECK-LABEL: func.func @several
// CHECK:         stablehlo.exponential %arg0
// CHECK-NEXT:    mesh.all_reduce
// CHECK-NEXT:    stablehlo.negate
// CHECK-NEXT:    stablehlo.multiply
// CHECK-NEXT:    stablehlo.tanh
func.func @several(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<0.1> : tensor<4xf32>
  %0 = stablehlo.exponential %x : tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  %2 = stablehlo.multiply %1, %c : tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %4 = stablehlo.tanh %3 : tensor<4xf32>
  return %4 : tensor<4xf32>
}

// What is all-reduced is rearranged after that, what is scattered before: its dimensions say what of it a device keeps.
// CHECK-LABEL: func.func @rearranged
// CHECK:         %[[R:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0] : tensor<4x8xf32> -> tensor<4x8xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[R]], dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
// CHECK-NEXT:    stablehlo.multiply %[[T]]
// CHECK:         %[[U:.*]] = stablehlo.transpose %arg0
// CHECK-NEXT:    %[[S:.*]] = mesh.reduce_scatter %[[U]] {{.*}} -> tensor<2x4xf32>
func.func @rearranged(%x: tensor<4x8xf32>, %w: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<2x4xf32>) {
  %c = stablehlo.constant dense<0.1> : tensor<8x4xf32>
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.multiply %0, %c : tensor<8x4xf32>
  %2 = mesh.all_reduce %1 on @m mesh_axes = [0] : tensor<8x4xf32> -> tensor<8x4xf32>
  %3 = stablehlo.subtract %w, %2 : tensor<8x4xf32>
  %4 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %5 = mesh.reduce_scatter %4 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x4xf32> -> tensor<2x4xf32>
  %6 = stablehlo.negate %5 : tensor<2x4xf32>
  return %3, %6 : tensor<8x4xf32>, tensor<2x4xf32>
}

// What is scattered is scaled by a factor of its size.
// CHECK-LABEL: func.func @scattered
// CHECK:         %[[C:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
// CHECK-NEXT:    %[[R:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x8xf32> -> tensor<2x8xf32>
// CHECK-NEXT:    stablehlo.multiply %[[R]], %[[C]] : tensor<2x8xf32>
func.func @scattered(%x: tensor<8x8xf32>, %w: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %s = stablehlo.constant dense<0.1> : tensor<f32>
  %e = stablehlo.exponential %s : tensor<f32>
  %c = stablehlo.broadcast_in_dim %e, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
  %0 = stablehlo.multiply %x, %c : tensor<8x8xf32>
  %1 = mesh.reduce_scatter %0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x8xf32> -> tensor<2x8xf32>
  %2 = stablehlo.subtract %w, %1 : tensor<2x8xf32>
  return %2 : tensor<2x8xf32>
}

// Factors that may differ between devices stay, and maxima, what is read elsewhere, and what no elementwise operation reads.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-4: stablehlo.multiply {{.*}}, %{{.*}} : tensor<4x4xf32>
// CHECK-NOT:     stablehlo.multiply
func.func @kept(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %c = stablehlo.constant dense<0.1> : tensor<4x4xf32>
  %0 = stablehlo.multiply %x, %y : tensor<4x4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4x4xf32> -> tensor<4x4xf32>
  %2 = stablehlo.multiply %x, %c : tensor<4x4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0] reduction = max : tensor<4x4xf32> -> tensor<4x4xf32>
  %4 = stablehlo.add %1, %3 : tensor<4x4xf32>
  %5 = stablehlo.multiply %y, %c : tensor<4x4xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [0] : tensor<4x4xf32> -> tensor<4x4xf32>
  %7 = stablehlo.add %6, %5 : tensor<4x4xf32>
  %8 = stablehlo.add %7, %4 : tensor<4x4xf32>
  %9 = stablehlo.multiply %c, %8 : tensor<4x4xf32>
  %10 = mesh.all_reduce %9 on @m mesh_axes = [0] : tensor<4x4xf32> -> tensor<4x4xf32>
  %11 = stablehlo.dot_general %10, %y, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %8, %11 : tensor<4x4xf32>, tensor<4x4xf32>
}

// Quotients of integers are no linear functions.
// CHECK-LABEL: func.func @integers
// CHECK:         stablehlo.divide
// CHECK-NEXT:    mesh.all_reduce
func.func @integers(%x: tensor<4xi32>) -> tensor<4xi32> {
  %c = stablehlo.constant dense<3> : tensor<4xi32>
  %0 = stablehlo.divide %x, %c : tensor<4xi32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xi32> -> tensor<4xi32>
  %2 = stablehlo.add %1, %c : tensor<4xi32>
  return %2 : tensor<4xi32>
}

// Negated are sums, not what a device adds up; what reads a sum on the way, maxima and what is not negated stay.
// CHECK-LABEL: func.func @negated
// CHECK:         %[[S:.*]] = stablehlo.reduce(%arg0 init
// CHECK-NEXT:    %[[T:.*]] = stablehlo.reshape %[[S]]
// CHECK-NEXT:    %[[U:.*]] = stablehlo.reduce(%[[T]] init
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %[[U]]
// CHECK-NEXT:    stablehlo.negate %[[R]]
// CHECK:         %[[N:.*]] = stablehlo.negate %arg0
// CHECK-NEXT:    stablehlo.reduce(%[[N]] init
// CHECK:         stablehlo.reduce(%[[N]] init
// CHECK:         stablehlo.reduce(%arg0 init
func.func @negated(%x: tensor<4x8xf32>, %w: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.negate %x : tensor<4x8xf32>
  %0 = stablehlo.reduce(%n init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<1x8xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %4 = stablehlo.add %w, %3 : tensor<8xf32>
  %m = stablehlo.negate %x : tensor<4x8xf32>
  %5 = stablehlo.reduce(%m init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
  %6 = mesh.all_reduce %5 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %7 = stablehlo.add %6, %5 : tensor<8xf32>
  %8 = stablehlo.reduce(%m init: %z) applies stablehlo.maximum across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
  %9 = mesh.all_reduce %8 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %10 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
  %11 = mesh.all_reduce %10 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %12 = stablehlo.add %9, %11 : tensor<8xf32>
  %13 = stablehlo.add %7, %12 : tensor<8xf32>
  return %4, %13 : tensor<8xf32>, tensor<8xf32>
}
