// RUN: mesh-opt %s --print-sharding-interface | filecheck %s

// CHECK:      stablehlo.dot_general
// CHECK-NEXT: loop types: [parallel parallel reduction_sum]
// CHECK-NEXT: indexing maps:
// CHECK-NEXT: (d0, d1, d2) -> (d0, d2)
// CHECK-NEXT: (d0, d1, d2) -> (d2, d1)
// CHECK-NEXT: (d0, d1, d2) -> (d0, d1)
func.func @dot(%a: tensor<2x8xf32>, %b: tensor<8x32xf32>) -> tensor<2x32xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
  return %0 : tensor<2x32xf32>
}
