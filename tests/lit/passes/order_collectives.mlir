// RUN: mesh-opt %s --order-collectives | filecheck %s

// The reduction waits for the loop, by way of bits that stay as they are.
// CHECK-LABEL: func.func @collective_behind_loop
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while
// CHECK:           "stablehlo.collective_permute"
// CHECK:         %[[BITS:.*]] = stablehlo.bitcast_convert %arg1 : (tensor<8xf32>) -> tensor<8xi32>
// CHECK:         %[[FIRST:.*]] = stablehlo.slice %[[LOOP]]#1 [0:1]
// CHECK:         %[[ALL:.*]] = stablehlo.broadcast_in_dim
// CHECK:         %[[LOWER:.*]] = stablehlo.minimum %[[BITS]], %[[ALL]]
// CHECK:         %[[UPPER:.*]] = stablehlo.maximum %[[BITS]], %[[LOWER]]
// CHECK:         %[[SAME:.*]] = stablehlo.bitcast_convert %[[UPPER]] : (tensor<8xi32>) -> tensor<8xf32>
// CHECK:         "stablehlo.collective_permute"(%[[SAME]])
func.func @collective_behind_loop(%a: tensor<4xi32>, %b: tensor<8xf32>) -> (tensor<4xi32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %l:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<4xi32>
    cond {
      %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xi32>) -> tensor<4xi32>
      stablehlo.return %j, %y : tensor<i32>, tensor<4xi32>
    }
  %r = "stablehlo.collective_permute"(%b) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<8xf32>) -> tensor<8xf32>
  return %l#1, %r : tensor<4xi32>, tensor<8xf32>
}

// What reads a result of the loop waits for it anyway, and collectives alone happen in the order in which they stand.
// CHECK-LABEL: func.func @in_order
// CHECK-NOT:     stablehlo.minimum
// CHECK:         return
func.func @in_order(%a: tensor<4xi32>, %b: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %p = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xi32>) -> tensor<4xi32>
  %l:2 = stablehlo.while(%i = %zero, %x = %p) : tensor<i32>, tensor<4xi32>
    cond {
      %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xi32>) -> tensor<4xi32>
      stablehlo.return %j, %y : tensor<i32>, tensor<4xi32>
    }
  %s = stablehlo.add %l#1, %b : tensor<4xi32>
  %q = "stablehlo.collective_permute"(%s) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xi32>) -> tensor<4xi32>
  %r = "stablehlo.collective_permute"(%s) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xi32>) -> tensor<4xi32>
  return %q, %r : tensor<4xi32>, tensor<4xi32>
}
