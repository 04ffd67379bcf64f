// RUN: mesh-opt %s --lower-collectives | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: @send_first
// CHECK: %[[SENT:.*]] = "stablehlo.collective_permute"(%arg0) {{.*}} dense<{{\[\[}}1, 2], [5, 6]]>
// CHECK: %[[ME:.*]] = stablehlo.compare EQ
// CHECK: stablehlo.select %[[ME]], %[[SENT]], %arg1
func.func @send_first(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  %1 = mesh.recv %y on @m mesh_axes = [1] source = [1] : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// What is sent is made after the recv: the permute stands where the send stood.
// CHECK-LABEL: @send_later
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %arg0, %arg0
// CHECK-NEXT: "stablehlo.collective_permute"(%[[SUM]])
func.func @send_later(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = mesh.recv %x on @m mesh_axes = [1] source = [1] : (tensor<3xf32>) -> tensor<3xf32>
  %sum = stablehlo.add %x, %x : tensor<3xf32>
  %1 = mesh.send %sum on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// What is received is used before the send: the permute stands where the recv stood.
// CHECK-LABEL: @recv_used_at_once
// CHECK-NEXT: "stablehlo.collective_permute"(%arg0)
func.func @recv_used_at_once(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = mesh.recv %x on @m mesh_axes = [1] source = [1] : (tensor<3xf32>) -> tensor<3xf32>
  %sum = stablehlo.add %0, %0 : tensor<3xf32>
  %1 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  return %sum : tensor<3xf32>
}

// Pairs match in order.
// CHECK-LABEL: @two_pairs
// CHECK: "stablehlo.collective_permute"(%arg0) {{.*}} dense<{{\[\[}}0, 3], [4, 7]]>
// CHECK: "stablehlo.collective_permute"(%arg1) {{.*}} dense<{{\[\[}}2, 1], [6, 5]]>
func.func @two_pairs(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [3] : (tensor<3xf32>) -> tensor<3xf32>
  %1 = mesh.send %y on @m mesh_axes = [1] destination = [1] : (tensor<3xf32>) -> tensor<3xf32>
  %2 = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<3xf32>) -> tensor<3xf32>
  %3 = mesh.recv %y on @m mesh_axes = [1] source = [2] : (tensor<3xf32>) -> tensor<3xf32>
  return %2, %3 : tensor<3xf32>, tensor<3xf32>
}

// CHECK-LABEL: @in_a_loop
// CHECK: do {
// CHECK: "stablehlo.collective_permute"
func.func @in_a_loop(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %less = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %s = mesh.send %v on @m mesh_axes = [1] destination = [1] : (tensor<3xf32>) -> tensor<3xf32>
      %r = mesh.recv %v on @m mesh_axes = [1] source = [0] : (tensor<3xf32>) -> tensor<3xf32>
      stablehlo.return %next, %r : tensor<i32>, tensor<3xf32>
    }
  return %0#1 : tensor<3xf32>
}
