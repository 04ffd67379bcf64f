// RUN: mesh-opt %s --sharding-refinement --verify-diagnostics

mesh.mesh @m(shape = 2x4)

func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %s = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8x16xf32>
  // expected-error @+1 {{attribute 'meshbridge.sharding_option' names axis 2 of a mesh of 2 axes}}
  %1 = stablehlo.tanh %0 {meshbridge.sharding_option = #mesh.axisarray<[[2], []]>} : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
