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

// CHECK-LABEL: func.func @every_second_row
func.func @every_second_row(%x: tensor<64x4xf32>) -> tensor<32x4xf32> {
  %two = stablehlo.constant dense<2> : tensor<32xi32>
  %iota = stablehlo.iota dim = 0 : tensor<32xi32>
  %rows = stablehlo.multiply %iota, %two : tensor<32xi32>
  %i = stablehlo.reshape %rows : (tensor<32xi32>) -> tensor<32x1xi32>
  // CHECK: %[[ROWS:.*]] = stablehlo.slice %{{.*}} [0:63:2, 0:4]
  // CHECK: return %[[ROWS]]
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>} : (tensor<64x4xf32>, tensor<32x1xi32>) -> tensor<32x4xf32>
  return %0 : tensor<32x4xf32>
}

// CHECK-LABEL: func.func @both_dimensions_turned
func.func @both_dimensions_turned(%x: tensor<8x16xf32>) -> tensor<5x7xf32> {
  %columns = stablehlo.constant dense<[12, 9, 6, 3, 0]> : tensor<5xi32>
  %rows = stablehlo.iota dim = 1 : tensor<5x7x1xi32>
  %j = stablehlo.broadcast_in_dim %columns, dims = [0] : (tensor<5xi32>) -> tensor<5x7x1xi32>
  %i = stablehlo.concatenate %rows, %j, dim = 2 : (tensor<5x7x1xi32>, tensor<5x7x1xi32>) -> tensor<5x7x2xi32>
  // CHECK: %[[CUT:.*]] = stablehlo.slice %{{.*}} [0:7, 0:13:3]
  // CHECK: %[[TURNED:.*]] = stablehlo.reverse %[[CUT]], dims = [1]
  // CHECK: stablehlo.transpose %[[TURNED]], dims = [1, 0]
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1],
    index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>} : (tensor<8x16xf32>, tensor<5x7x2xi32>) -> tensor<5x7xf32>
  return %0 : tensor<5x7xf32>
}

// CHECK-LABEL: func.func @a_few_rows
func.func @a_few_rows(%x: tensor<64x4xf32>) -> tensor<5x4xf32> {
  %i = stablehlo.iota dim = 0 : tensor<5x1xi32>
  // CHECK: "stablehlo.gather"
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>} : (tensor<64x4xf32>, tensor<5x1xi32>) -> tensor<5x4xf32>
  return %0 : tensor<5x4xf32>
}

// Indices beyond the operand are clamped; a diagonal is no slice; windows of two rows overlap.
// CHECK-LABEL: func.func @no_slices
func.func @no_slices(%x: tensor<8x8xf32>) -> (tensor<5x8xf32>, tensor<8xf32>, tensor<7x2x8xf32>) {
  %c = stablehlo.constant dense<[0, 2, 4, 6, 8]> : tensor<5xi32>
  %i = stablehlo.reshape %c : (tensor<5xi32>) -> tensor<5x1xi32>
  %iota = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %j = stablehlo.concatenate %iota, %iota, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %k = stablehlo.iota dim = 0 : tensor<7x1xi32>
  // CHECK-COUNT-3: "stablehlo.gather"
  %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>} : (tensor<8x8xf32>, tensor<5x1xi32>) -> tensor<5x8xf32>
  %1 = "stablehlo.gather"(%x, %j) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1],
    index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : (tensor<8x8xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  %2 = "stablehlo.gather"(%x, %k) {dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], start_index_map = [0],
    index_vector_dim = 1>, slice_sizes = array<i64: 2, 8>} : (tensor<8x8xf32>, tensor<7x1xi32>) -> tensor<7x2x8xf32>
  return %0, %1, %2 : tensor<5x8xf32>, tensor<8xf32>, tensor<7x2x8xf32>
}
