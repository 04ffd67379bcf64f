// RUN: mesh-opt --legalize %s | filecheck %s

// CHECK-LABEL: func.func @rows
func.func @rows(%x: tensor<8x16xf32>, %labels: tensor<8xi32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<8xi32>
  %count = stablehlo.constant dense<8> : tensor<8xi32>
  %iota = stablehlo.iota dim = 0 : tensor<8xi32>
  %negative = stablehlo.compare LT, %iota, %zero : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
  %from_end = stablehlo.add %iota, %count : tensor<8xi32>
  %row = stablehlo.select %negative, %from_end, %iota : tensor<8xi1>, tensor<8xi32>
  %rows = stablehlo.reshape %row : (tensor<8xi32>) -> tensor<8x1xi32>
  %columns = stablehlo.broadcast_in_dim %labels, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %i = stablehlo.concatenate %rows, %columns, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  // CHECK: %[[J:.*]] = stablehlo.slice %{{.*}} [0:8, 1:2] : (tensor<8x2xi32>) -> tensor<8x1xi32>
  // CHECK: "stablehlo.gather"(%{{.*}}, %[[J]])
  // CHECK-SAME: collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1]
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1],
    index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : (tensor<8x16xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// An iota shorter than the dimension counts only some of its rows.
// CHECK-LABEL: func.func @some_rows
func.func @some_rows(%x: tensor<8x16xf32>, %labels: tensor<4x1xi32>) -> tensor<4xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %i = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  // CHECK: "stablehlo.gather"
  // CHECK-NOT: operand_batching_dims
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1],
    index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : (tensor<8x16xf32>, tensor<4x2xi32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @into_rows
func.func @into_rows(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %u: tensor<8xf32>) -> tensor<8x16xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %i = stablehlo.concatenate %labels, %rows, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  // CHECK: "stablehlo.scatter"
  // CHECK-SAME: inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1]
  %0 = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0],
    index_vector_dim = 1>} : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
