// RUN: mesh-opt %s --legalize=split-constants | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK:         %[[A:.*]] = stablehlo.broadcast_in_dim
// CHECK:         %[[B:.*]] = stablehlo.broadcast_in_dim
// CHECK:         stablehlo.add %arg0, %[[A]]
// CHECK:         stablehlo.multiply %{{.*}}, %[[B]]
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
  %1 = stablehlo.add %x, %0 : tensor<8x16xf32>
  %2 = stablehlo.multiply %1, %0 : tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
