// RUN: mesh-opt %s --all-reduce-reassociate | filecheck %s

mesh.mesh @m(shape = 2x4)

// A chain of sums: one all-reduce at its end. The order of axes does not matter.
// CHECK-LABEL: func.func @sums
// CHECK-NEXT:    %[[A:.*]] = stablehlo.add %arg0, %arg1
// CHECK-NEXT:    %[[B:.*]] = stablehlo.subtract %[[A]], %arg2
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %[[B]] on @m mesh_axes = [0, 1]
// CHECK-NEXT:    return %[[R]]
func.func @sums(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [1, 0] : tensor<4xf32> -> tensor<4xf32>
  %2 = mesh.all_reduce %z on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
  %3 = stablehlo.add %0, %1 : tensor<4xf32>
  %4 = stablehlo.subtract %3, %2 : tensor<4xf32>
  return %4 : tensor<4xf32>
}

// CHECK-LABEL: func.func @kinds
// CHECK-COUNT-4: mesh.all_reduce
// CHECK-NOT:     mesh.all_reduce
func.func @kinds(%x: tensor<4xi32>, %y: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [1] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %2 = stablehlo.maximum %0, %1 : tensor<4xi32>
  %3 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = min : tensor<4xi32> -> tensor<4xi32>
  %4 = mesh.all_reduce %y on @m mesh_axes = [1] reduction = min : tensor<4xi32> -> tensor<4xi32>
  %5 = stablehlo.minimum %3, %4 : tensor<4xi32>
  %6 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = product : tensor<4xi32> -> tensor<4xi32>
  %7 = mesh.all_reduce %y on @m mesh_axes = [1] reduction = product : tensor<4xi32> -> tensor<4xi32>
  %8 = stablehlo.multiply %6, %7 : tensor<4xi32>
  %9 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = bitwise_xor : tensor<4xi32> -> tensor<4xi32>
  %10 = mesh.all_reduce %y on @m mesh_axes = [1] reduction = bitwise_xor : tensor<4xi32> -> tensor<4xi32>
  %11 = stablehlo.xor %9, %10 : tensor<4xi32>
  return %2, %5, %8, %11 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
}

// What makes a value smaller comes first; so does scaling by a constant.
// CHECK-LABEL: func.func @one_operand
// CHECK:         stablehlo.negate %arg0
// CHECK:         stablehlo.multiply
// CHECK:         stablehlo.slice
// CHECK:         stablehlo.transpose
// CHECK:         stablehlo.reduce
// CHECK-NEXT:    mesh.all_reduce %{{.*}} : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    return
func.func @one_operand(%x: tensor<4x6xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<0.5> : tensor<4x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4x6xf32> -> tensor<4x6xf32>
  %1 = stablehlo.negate %0 : tensor<4x6xf32>
  %2 = stablehlo.multiply %c, %1 : tensor<4x6xf32>
  %3 = stablehlo.slice %2 [0:4, 1:4] : (tensor<4x6xf32>) -> tensor<4x3xf32>
  %4 = stablehlo.transpose %3, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %5 : tensor<4xf32>
}

// The same value twice is one all-reduce, used twice by one operation.
// CHECK-LABEL: func.func @twice
// CHECK-NEXT:    stablehlo.add %arg0, %arg0
// CHECK-NEXT:    mesh.all_reduce
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = stablehlo.add %0, %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Another use, another kind, other axes, an initial value that would be added once per device, and a scale that differs by device.
// CHECK-LABEL: func.func @kept
// CHECK:         %[[A:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0] : tensor<4xf32>
// CHECK-NEXT:    %[[B:.*]] = mesh.all_reduce %arg1 on @m mesh_axes = [0] : tensor<4xf32>
// CHECK-NEXT:    stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[C:.*]] = mesh.all_reduce %arg1 on @m mesh_axes = [1] : tensor<4xf32>
// CHECK-NEXT:    %[[D:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0] : tensor<4xf32>
// CHECK-NEXT:    stablehlo.subtract %[[C]], %[[D]]
// CHECK-NEXT:    %[[E:.*]] = mesh.all_reduce
// CHECK-NEXT:    stablehlo.reduce(%[[E]]
// CHECK-NEXT:    %[[F:.*]] = mesh.all_reduce
// CHECK-NEXT:    stablehlo.multiply %[[F]], %arg1
func.func @kept(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<1xf32>, tensor<4xf32>) {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  %3 = mesh.all_reduce %y on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %4 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %5 = stablehlo.subtract %3, %4 : tensor<4xf32>
  %6 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %7 = stablehlo.reduce(%6 init: %one) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %8 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %9 = stablehlo.multiply %8, %y : tensor<4xf32>
  %10 = stablehlo.reshape %7 : (tensor<f32>) -> tensor<1xf32>
  return %2, %0, %5, %10, %9 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<1xf32>, tensor<4xf32>
}
