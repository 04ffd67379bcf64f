// RUN: mesh-opt %s --broadcast-in-loops | filecheck %s

// A mask, carried unchanged, and another one from outside of the loop.
// CHECK-LABEL: func.func @masks
// CHECK:         stablehlo.while
// CHECK:           %[[MASK:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
// CHECK:           %[[OTHER:.*]] = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
// CHECK:           stablehlo.select %[[MASK]]
// CHECK:           stablehlo.select %[[OTHER]]
func.func @masks(%mask: tensor<4x4xi1>, %other: tensor<4x4xi1>, %x: tensor<8x4x4xf32>, %y: tensor<8x4x4xf32>) -> tensor<8x4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.broadcast_in_dim %mask, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
  %1 = stablehlo.broadcast_in_dim %other, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
  %2:3 = stablehlo.while(%i = %zero, %a = %0, %b = %x) : tensor<i32>, tensor<8x4x4xi1>, tensor<8x4x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      %4 = stablehlo.select %a, %b, %y : tensor<8x4x4xi1>, tensor<8x4x4xf32>
      %5 = stablehlo.select %1, %4, %y : tensor<8x4x4xi1>, tensor<8x4x4xf32>
      stablehlo.return %3, %a, %5 : tensor<i32>, tensor<8x4x4xi1>, tensor<8x4x4xf32>
    }
  return %2#2 : tensor<8x4x4xf32>
}

// What changes from iteration to iteration is carried, and a broadcast that makes nothing larger stays.
// CHECK-LABEL: func.func @stays
// CHECK:         stablehlo.while
// CHECK-NOT:     stablehlo.broadcast_in_dim
// CHECK:         return
func.func @stays(%s: tensor<f32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
  %1 = stablehlo.broadcast_in_dim %x, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2:2 = stablehlo.while(%i = %zero, %a = %0) : tensor<i32>, tensor<4x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      %4 = stablehlo.add %a, %1 : tensor<4x4xf32>
      stablehlo.return %3, %4 : tensor<i32>, tensor<4x4xf32>
    }
  return %2#1 : tensor<4x4xf32>
}
