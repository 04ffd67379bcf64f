// The RFC's second walk-through in the canonical spelling: the sharding of the second contraction stands on the operation, by loop.
mesh.mesh @mesh0(shape = 8)

func.func @mlp_1d_weight_stationary_with_sharding_on_operation(%arg0: tensor<2x4x8xf32>, %arg1: tensor<8x32xf32>, %arg2: tensor<32x8xf32>) -> tensor<2x4x8xf32> {
  %split = mesh.sharding @mesh0 split_axes = [[], [], [0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %split : tensor<2x4x8xf32>
  %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [2] x [0] : (tensor<2x4x8xf32>, tensor<8x32xf32>) -> tensor<2x4x32xf32>
  %2 = stablehlo.constant dense<0.000000e+00> : tensor<2x4x32xf32>
  %3 = stablehlo.maximum %1, %2 : tensor<2x4x32xf32>
  %4 = stablehlo.dot_general %3, %arg2, contracting_dims = [2] x [0] {meshbridge.sharding_option = #mesh.axisarray<[[], [], [], [0]]>} : (tensor<2x4x32xf32>, tensor<32x8xf32>) -> tensor<2x4x8xf32>
  %5 = mesh.shard %4 to %split annotate_for_users : tensor<2x4x8xf32>
  return %5 : tensor<2x4x8xf32>
}
