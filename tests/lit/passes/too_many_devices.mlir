// RUN: mesh-opt %s --sharding-propagation --verify-diagnostics

mesh.mesh @m(shape = 2x4)

func.func @main(%x: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %s = mesh.sharding @m split_axes = [[0, 1], []] : !mesh.sharding
  // expected-error @+1 {{lets 8 devices (axes 0, 1) share dimension 0 of an argument or result, which has 4 elements}}
  %0 = mesh.shard %x to %s : tensor<4x16xf32>
  %1 = stablehlo.tanh %0 : tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}
