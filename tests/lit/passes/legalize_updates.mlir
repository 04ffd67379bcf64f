// RUN: mesh-opt %s --legalize | filecheck %s

// CHECK-LABEL: func.func @interior
// CHECK:         %[[PLACED:.*]] = stablehlo.pad %arg1, {{.*}}, low = [1, 2], high = [1, 0], interior = [0, 0]
// CHECK:         stablehlo.select {{.*}}, %[[PLACED]], %arg0
// CHECK-NOT:     stablehlo.scatter
func.func @interior(%x: tensor<8x8xf32>, %y: tensor<6x6xf32>) -> tensor<8x8xf32> {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<i32>) -> tensor<1xi32>
  %1 = stablehlo.broadcast_in_dim %two, dims = [] : (tensor<i32>) -> tensor<1xi32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %3 = "stablehlo.scatter"(%x, %2, %y) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1]>} : (tensor<8x8xf32>, tensor<2xi32>, tensor<6x6xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @added
// CHECK:         %[[PLACED:.*]] = stablehlo.pad
// CHECK:         %[[SUM:.*]] = stablehlo.add %arg0, %[[PLACED]]
// CHECK:         stablehlo.select {{.*}}, %[[SUM]], %arg0
func.func @added(%x: tensor<8xf32>, %y: tensor<6xf32>) -> tensor<8xf32> {
  %0 = stablehlo.constant dense<1> : tensor<1xi32>
  %1 = "stablehlo.scatter"(%x, %0, %y) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], scatter_dims_to_operand_dims = [0]>} : (tensor<8xf32>, tensor<1xi32>, tensor<6xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// A dynamic update is clamped to fit.
// CHECK-LABEL: func.func @clamped
// CHECK:         stablehlo.pad %arg1, {{.*}}, low = [2], high = [0], interior = [0]
func.func @clamped(%x: tensor<8xf32>, %y: tensor<6xf32>) -> tensor<8xf32> {
  %0 = stablehlo.constant dense<5> : tensor<i32>
  %1 = stablehlo.dynamic_update_slice %x, %y, %0 : (tensor<8xf32>, tensor<6xf32>, tensor<i32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// A scatter that does not fit is left out, a small update is written in place, and a place may be unknown: all stay.
// CHECK-LABEL: func.func @others
// CHECK:         stablehlo.scatter
// CHECK:         stablehlo.dynamic_update_slice
// CHECK:         stablehlo.dynamic_update_slice
func.func @others(%x: tensor<8xf32>, %y: tensor<6xf32>, %z: tensor<1xf32>, %i: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.constant dense<3> : tensor<1xi32>
  %1 = "stablehlo.scatter"(%x, %0, %y) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], scatter_dims_to_operand_dims = [0]>} : (tensor<8xf32>, tensor<1xi32>, tensor<6xf32>) -> tensor<8xf32>
  %2 = stablehlo.constant dense<3> : tensor<i32>
  %3 = stablehlo.dynamic_update_slice %x, %z, %2 : (tensor<8xf32>, tensor<1xf32>, tensor<i32>) -> tensor<8xf32>
  %4 = stablehlo.dynamic_update_slice %x, %y, %i : (tensor<8xf32>, tensor<6xf32>, tensor<i32>) -> tensor<8xf32>
  return %1, %3, %4 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
