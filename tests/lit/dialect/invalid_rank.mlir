// RUN: not mesh-opt %s 2>&1 | filecheck %s
// CHECK: invalid_rank.mlir:4:1: error: 'mesh.cluster' op is of rank 1000000000000, expected at most 32768

mesh.cluster @m(rank = 1000000000000)
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_cluster = @m} {
  %0 = mesh.annotate %a {required = true, sharding = [[0]]} : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
