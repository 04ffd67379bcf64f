// RUN: mesh-opt %s --lower-collectives | filecheck %s

mesh.mesh @m(shape = 2x2)

// The element is converted to the result's type before it is reduced.
// CHECK-LABEL: @accumulates_in_the_result_type
// CHECK:      %[[WIDE:.*]] = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xf64>
// CHECK-NEXT: "stablehlo.all_reduce"(%[[WIDE]])
// CHECK:      stablehlo.multiply %{{.*}} : tensor<f64>
func.func @accumulates_in_the_result_type(%x: tensor<2xf32>) -> tensor<2xf64> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = product : tensor<2xf32> -> tensor<2xf64>
  return %0 : tensor<2xf64>
}

// Integers in the order of the numbers, among which a NaN is the largest: XLA's collectives would lose it.
// CHECK-LABEL: @largest
// CHECK:      %[[BITS:.*]] = stablehlo.bitcast_convert %arg0 : (tensor<2xbf16>) -> tensor<2xi16>
// CHECK:      stablehlo.shift_right_arithmetic %[[BITS]]
// CHECK:      %[[NAN:.*]] = stablehlo.constant dense<32767> : tensor<2xi16>
// CHECK:      %[[ORDERED:.*]] = stablehlo.xor %[[BITS]]
// CHECK:      %[[ISNAN:.*]] = stablehlo.compare NE, %arg0, %arg0
// CHECK:      %[[KEYS:.*]] = stablehlo.select %[[ISNAN]], %[[NAN]], %[[ORDERED]]
// CHECK:      "stablehlo.all_reduce"(%[[KEYS]])
// CHECK:      stablehlo.maximum %{{.*}} : tensor<i16>
// CHECK:      stablehlo.bitcast_convert %{{.*}} : (tensor<2xi16>) -> tensor<2xbf16>
func.func @largest(%x: tensor<2xbf16>) -> tensor<2xbf16> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = max : tensor<2xbf16> -> tensor<2xbf16>
  return %0 : tensor<2xbf16>
}

// CHECK-LABEL: @average
// CHECK:      %[[SUM:.*]] = "stablehlo.reduce_scatter"
// CHECK:      stablehlo.add
// CHECK:      %[[COUNT:.*]] = stablehlo.constant dense<4.000000e+00> : tensor<2xf32>
// CHECK-NEXT: stablehlo.divide %[[SUM]], %[[COUNT]]
func.func @average(%x: tensor<8xf32>) -> tensor<2xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] reduction = average scatter_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// XLA's collectives cannot combine bits: the pieces are exchanged and combined by each device.
// CHECK-LABEL: @bits
// CHECK-NOT:  all_reduce
// CHECK:      %[[FLAT:.*]] = stablehlo.reshape %arg0 : (tensor<3x2xi8>) -> tensor<6xi8>
// CHECK:      %[[EXCHANGED:.*]] = "stablehlo.all_to_all"(%[[FLAT]])
// CHECK:      %[[PIECES:.*]] = stablehlo.reshape %[[EXCHANGED]] : (tensor<6xi8>) -> tensor<2x3xi8>
// CHECK:      %[[ONES:.*]] = stablehlo.constant dense<-1> : tensor<i8>
// CHECK-NEXT: %[[PIECE:.*]] = stablehlo.reduce(%[[PIECES]] init: %[[ONES]]) applies stablehlo.and across dimensions = [0]
// CHECK:      "stablehlo.all_gather"(%[[PIECE]])
func.func @bits(%x: tensor<3x2xi8>) -> tensor<3x2xi8> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = bitwise_and : tensor<3x2xi8> -> tensor<3x2xi8>
  return %0 : tensor<3x2xi8>
}

// Groups of one device communicate nothing.
// CHECK-LABEL: @alone
// CHECK-NEXT: stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xf64>
// CHECK-NEXT: return
func.func @alone(%x: tensor<2xf32>) -> tensor<2xf64> {
  %0 = mesh.all_reduce %x on @m : tensor<2xf32> -> tensor<2xf64>
  return %0 : tensor<2xf64>
}
