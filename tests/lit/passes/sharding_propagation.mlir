// RUN: mesh-opt %s --sharding-propagation | filecheck %s

mesh.mesh @m(shape = 2x4)

// A row-wise split of the input reaches the result; every operand and result is annotated, every op carries its option.
// CHECK-LABEL: func.func @elementwise
// CHECK:         %[[ROWS:.*]] = mesh.sharding @m split_axes = {{\[\[}}0], []]
// CHECK:         %[[USE:.*]] = mesh.shard %{{.*}} to %{{.*}} annotate_for_users
// CHECK:         %[[OP:.*]] = stablehlo.tanh %[[USE]] {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}0], []]>}
// CHECK:         mesh.shard %[[OP]] to
func.func @elementwise(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %s = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// The contraction is split where both operands are: the definition of the product is finished, not left partial.
// CHECK-LABEL: func.func @contraction
// CHECK:         stablehlo.dot_general {{.*}} {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}], [], [1]]>}
// CHECK-NOT:     partial
func.func @contraction(%x: tensor<8x16xf32>, %y: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %columns = mesh.sharding @m split_axes = [[], [1]] : !mesh.sharding
  %rows = mesh.sharding @m split_axes = [[1], []] : !mesh.sharding
  %whole = mesh.sharding @m split_axes = [[], []] : !mesh.sharding
  %0 = mesh.shard %x to %columns : tensor<8x16xf32>
  %1 = mesh.shard %y to %rows : tensor<16x4xf32>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = mesh.shard %2 to %whole annotate_for_users : tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}
