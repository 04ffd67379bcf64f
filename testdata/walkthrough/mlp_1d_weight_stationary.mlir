// The RFC's first walk-through in the canonical spelling: sharding annotations on tensors, the contraction left partial.
mesh.mesh @mesh0(shape = 2)

func.func @mlp(%arg0: tensor<2x4x8xf32>, %arg1: tensor<8x32xf32>, %arg2: tensor<32x8xf32>) -> tensor<2x4x8xf32> {
  %split = mesh.sharding @mesh0 split_axes = [[], [], [0]] : !mesh.sharding
  %partial = mesh.sharding @mesh0 split_axes = [[], [], []] partial = sum[0] : !mesh.sharding
  %0 = mesh.shard %arg0 to %split : tensor<2x4x8xf32>
  %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [2] x [0] : (tensor<2x4x8xf32>, tensor<8x32xf32>) -> tensor<2x4x32xf32>
  %2 = stablehlo.constant dense<0.000000e+00> : tensor<2x4x32xf32>
  %3 = stablehlo.maximum %1, %2 : tensor<2x4x32xf32>
  %4 = stablehlo.dot_general %3, %arg2, contracting_dims = [2] x [0] : (tensor<2x4x32xf32>, tensor<32x8xf32>) -> tensor<2x4x8xf32>
  %5 = mesh.shard %4 to %partial : tensor<2x4x8xf32>
  %6 = mesh.shard %5 to %split annotate_for_users : tensor<2x4x8xf32>
  return %6 : tensor<2x4x8xf32>
}
