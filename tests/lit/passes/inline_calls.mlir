// RUN: mesh-opt %s --inline-calls | filecheck %s

// CHECK-LABEL: func.func public @main
// CHECK-NEXT:    %[[A:.*]] = stablehlo.logistic %arg0
// CHECK-NEXT:    %[[B:.*]] = stablehlo.multiply %arg0, %[[A]]
// CHECK-NEXT:    %[[C:.*]] = stablehlo.logistic %[[B]]
// CHECK-NEXT:    %[[D:.*]] = stablehlo.multiply %[[B]], %[[C]]
// CHECK-NEXT:    return %[[D]]
// CHECK-NOT:   func.func private
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @twice(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @silu(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @silu(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @silu(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.logistic %x : tensor<8xf32>
  %1 = stablehlo.multiply %x, %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}
