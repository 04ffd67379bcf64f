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

// Each copy is a member of the group.
// CHECK-LABEL: func.func @grouped
// CHECK:         %[[A:.*]] = stablehlo.broadcast_in_dim
// CHECK:         %[[B:.*]] = stablehlo.broadcast_in_dim
// CHECK-DAG:     sdy.sharding_group %[[A]] group_id=7
// CHECK-DAG:     sdy.sharding_group %[[B]] group_id=7
// CHECK:         return
func.func @grouped(%x: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
  sdy.sharding_group %0 group_id=7 : tensor<8x16xf32>
  %1 = stablehlo.add %x, %0 : tensor<8x16xf32>
  return %1, %0 : tensor<8x16xf32>, tensor<8x16xf32>
}

// A value with one reader stays one, whatever groups it is a member of.
// CHECK-LABEL: func.func @one_reader
// CHECK:         stablehlo.iota
// CHECK-NOT:     stablehlo.iota
// CHECK:         return
func.func @one_reader() -> tensor<8x16xf32> {
  %0 = stablehlo.iota dim = 0 : tensor<8x16xf32>
  sdy.sharding_group %0 group_id=0 : tensor<8x16xf32>
  sdy.sharding_group %0 group_id=1 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
