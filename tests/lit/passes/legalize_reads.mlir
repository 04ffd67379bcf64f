// RUN: mesh-opt %s --legalize | filecheck %s

// A rotation by one element: the last part comes from a pad that lets all but its elements fall off.
// CHECK-LABEL: func.func @rotated
// CHECK-DAG:     %[[REST:.*]] = stablehlo.pad %arg0, {{.*}}, low = [1], high = [-1], interior = [0]
// CHECK-DAG:     %[[FIRST:.*]] = stablehlo.pad %arg0, {{.*}}, low = [-7], high = [7], interior = [0]
// CHECK:         %[[BEFORE:.*]] = stablehlo.compare{{ *}}LT
// CHECK:         stablehlo.select {{.*}}, %[[FIRST]], %[[REST]]
// CHECK-NOT:     stablehlo.concatenate
func.func @rotated(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.slice %x [7:8] : (tensor<8xf32>) -> tensor<1xf32>
  %1 = stablehlo.slice %x [0:7] : (tensor<8xf32>) -> tensor<7xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1xf32>, tensor<7xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// Parts of two tensors, and slices with steps, stay as they are.
// CHECK-LABEL: func.func @others
// CHECK:         stablehlo.concatenate
// CHECK:         stablehlo.concatenate
func.func @others(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
  %0 = stablehlo.slice %x [0:2] : (tensor<8xf32>) -> tensor<2xf32>
  %1 = stablehlo.slice %y [0:2] : (tensor<8xf32>) -> tensor<2xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
  %3 = stablehlo.slice %x [0:8:2] : (tensor<8xf32>) -> tensor<4xf32>
  %4 = stablehlo.slice %x [1:8:2] : (tensor<8xf32>) -> tensor<4xf32>
  %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %2, %5 : tensor<4xf32>, tensor<8xf32>
}

// A rotation of a rotation.
// CHECK-LABEL: func.func @twice
// CHECK-COUNT-4: stablehlo.pad
// CHECK-NOT:     stablehlo.slice
// CHECK:         return
func.func @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.slice %x [7:8] : (tensor<8xf32>) -> tensor<1xf32>
  %1 = stablehlo.slice %x [0:7] : (tensor<8xf32>) -> tensor<7xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<1xf32>, tensor<7xf32>) -> tensor<8xf32>
  %3 = stablehlo.slice %2 [7:8] : (tensor<8xf32>) -> tensor<1xf32>
  %4 = stablehlo.slice %2 [0:7] : (tensor<8xf32>) -> tensor<7xf32>
  %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<1xf32>, tensor<7xf32>) -> tensor<8xf32>
  return %5 : tensor<8xf32>
}

// The gradient of a rotation pads slices.
// CHECK-LABEL: func.func @padded
// CHECK-DAG:     stablehlo.pad %arg0, {{.*}}, low = [1], high = [-1], interior = [0]
// CHECK-DAG:     stablehlo.pad %arg0, {{.*}}, low = [-7], high = [7], interior = [0]
// CHECK-NOT:     stablehlo.slice
// CHECK:         return
func.func @padded(%x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.slice %x [7:8] : (tensor<8xf32>) -> tensor<1xf32>
  %1 = stablehlo.pad %0, %zero, low = [0], high = [7], interior = [0] : (tensor<1xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = stablehlo.slice %x [0:7] : (tensor<8xf32>) -> tensor<7xf32>
  %3 = stablehlo.pad %2, %zero, low = [1], high = [0], interior = [0] : (tensor<7xf32>, tensor<f32>) -> tensor<8xf32>
  %4 = stablehlo.add %1, %3 : tensor<8xf32>
  return %4 : tensor<8xf32>
}

// A pad of all of %x would bring back the elements that the slice has cut off.
// CHECK-LABEL: func.func @masked
// CHECK:         stablehlo.slice
// CHECK:         stablehlo.pad
// CHECK:         stablehlo.slice
// CHECK:         stablehlo.pad
func.func @masked(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.slice %x [0:4] : (tensor<8xf32>) -> tensor<4xf32>
  %1 = stablehlo.pad %0, %zero, low = [0], high = [4], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = stablehlo.slice %x [2:8] : (tensor<8xf32>) -> tensor<6xf32>
  %3 = stablehlo.pad %2, %zero, low = [1], high = [1], interior = [0] : (tensor<6xf32>, tensor<f32>) -> tensor<8xf32>
  return %1, %3 : tensor<8xf32>, tensor<8xf32>
}
