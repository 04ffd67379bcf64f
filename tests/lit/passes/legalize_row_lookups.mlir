// RUN: mesh-opt %s --legalize | filecheck %s

// One update for each row of zeros: a select, with the same sum.
// CHECK-LABEL: func.func @updated
// CHECK:         %[[ZEROS:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<8x16xf32>
// CHECK:         %[[SUM:.*]] = stablehlo.add %{{.*}}, %arg1 : tensor<8xf32>
// CHECK:         %[[HERE:.*]] = stablehlo.compare EQ
// CHECK:         %[[UPDATE:.*]] = stablehlo.broadcast_in_dim %[[SUM]], dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
// CHECK:         stablehlo.select %[[HERE]], %[[UPDATE]], %[[ZEROS]]
// CHECK-NOT:     stablehlo.scatter
func.func @updated(%labels: tensor<8x1xi32>, %u: tensor<8xf32>) -> tensor<8x16xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%zeros, %labels, %u) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>} : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// A tensor that is there already is written into in place.
// CHECK-LABEL: func.func @in_place
// CHECK:         stablehlo.scatter
func.func @in_place(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %u: tensor<8xf32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.scatter"(%x, %labels, %u) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>} : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// Of two updates of a row the second one may hit the same element.
// CHECK-LABEL: func.func @twice
// CHECK:         stablehlo.scatter
func.func @twice(%labels: tensor<8x2x1xi32>, %u: tensor<8x2xf32>) -> tensor<8x16xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%zeros, %labels, %u) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>} : (tensor<8x16xf32>, tensor<8x2x1xi32>, tensor<8x2xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// The largest of a row is subtracted from what was looked up, of logits as they are stored.
// CHECK-LABEL: func.func @looked_up
// CHECK:         %[[FOUND:.*]] = "stablehlo.gather"(%arg0, %arg2)
// CHECK-SAME:    (tensor<8x16xbf16>, tensor<8x1xi32>) -> tensor<8xbf16>
// CHECK:         %[[WIDE:.*]] = stablehlo.convert %[[FOUND]] : (tensor<8xbf16>) -> tensor<8xf32>
// CHECK:         %[[MOST:.*]] = stablehlo.reshape %arg1 : (tensor<8x1xf32>) -> tensor<8xf32>
// CHECK:         %[[EACH:.*]] = stablehlo.broadcast_in_dim %[[MOST]], dims = [0] : (tensor<8xf32>) -> tensor<8xf32>
// CHECK:         stablehlo.subtract %[[WIDE]], %[[EACH]] : tensor<8xf32>
func.func @looked_up(%logits: tensor<8x16xbf16>, %most: tensor<8x1xf32>, %labels: tensor<8x1xi32>) -> tensor<8xf32> {
  %0 = stablehlo.convert %logits : (tensor<8x16xbf16>) -> tensor<8x16xf32>
  %1 = stablehlo.broadcast_in_dim %most, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x16xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<8x16xf32>
  %3 = "stablehlo.gather"(%2, %labels) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}

// Of two tensors that vary along a row both would have to be looked up.
// CHECK-LABEL: func.func @of_two
// CHECK:         stablehlo.add
// CHECK:         stablehlo.gather
func.func @of_two(%x: tensor<8x16xf32>, %y: tensor<8x16xf32>, %labels: tensor<8x1xi32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  %1 = "stablehlo.gather"(%0, %labels) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
