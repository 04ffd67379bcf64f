// RUN: mesh-opt --legalize %s | filecheck %s

// CHECK-LABEL: func.func @dot
func.func @dot(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  // CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0]
  %0 = stablehlo.dot %a, %b : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @einsum
func.func @einsum(%a: tensor<2x8x16xf32>, %b: tensor<2x16x4xf32>) -> tensor<4x2x8xf32> {
  // CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0] x [0], contracting_dims = [2] x [1]
  // CHECK: stablehlo.transpose %{{.*}}, dims = [2, 0, 1]
  %0 = "stablehlo.einsum"(%a, %b) {einsum_config = "bij,bjk->kbi"} : (tensor<2x8x16xf32>, tensor<2x16x4xf32>) -> tensor<4x2x8xf32>
  return %0 : tensor<4x2x8xf32>
}

// CHECK-LABEL: func.func @tuple
func.func @tuple(%a: tensor<8xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NOT: tuple
  // CHECK: return %arg1
  %0 = stablehlo.tuple %a, %b : tuple<tensor<8xf32>, tensor<4xf32>>
  %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<8xf32>, tensor<4xf32>>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CHECK-LABEL: func.func @static_sizes
func.func @static_sizes(%a: tensor<8xf32>) -> tensor<4x8xf32> {
  // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
  %0 = stablehlo.constant dense<[4, 8]> : tensor<2xi64>
  %1 = stablehlo.dynamic_broadcast_in_dim %a, %0, dims = [1] : (tensor<8xf32>, tensor<2xi64>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @tuple_of_tuples
func.func @tuple_of_tuples(%a: tensor<4xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK-NOT: tuple
  // CHECK: return %arg1
  %0 = stablehlo.tuple %a, %b : tuple<tensor<4xf32>, tensor<8xf32>>
  %1 = stablehlo.tuple %a, %0 : tuple<tensor<4xf32>, tuple<tensor<4xf32>, tensor<8xf32>>>
  %2 = stablehlo.get_tuple_element %1[1] : (tuple<tensor<4xf32>, tuple<tensor<4xf32>, tensor<8xf32>>>) -> tuple<tensor<4xf32>, tensor<8xf32>>
  %3 = stablehlo.get_tuple_element %2[1] : (tuple<tensor<4xf32>, tensor<8xf32>>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}
