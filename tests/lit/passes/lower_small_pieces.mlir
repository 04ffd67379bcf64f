// RUN: mesh-opt %s --lower-collectives="machine=v5p" | filecheck %s

mesh.mesh @m(shape = 4)

// XLA:TPU reduces the whole of what is small and scattered into parts of a tile: so it is written, and the piece cut from it.
// CHECK-LABEL: func.func @small
// CHECK-NOT:     reduce_scatter
// CHECK:         stablehlo.all_reduce
// CHECK:         stablehlo.dynamic_slice {{.*}} (tensor<4x8x4xf32>
func.func @small(%x: tensor<4x8x4xf32>) -> tensor<4x2x4xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 1 : tensor<4x8x4xf32> -> tensor<4x2x4xf32>
  return %0 : tensor<4x2x4xf32>
}

// Of what is large a part of a tile may be scattered all the same.
// CHECK-LABEL: func.func @large
// CHECK:         stablehlo.reduce_scatter
func.func @large(%x: tensor<2048x4096x256xf32>) -> tensor<2048x4096x64xf32> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 2 : tensor<2048x4096x256xf32> -> tensor<2048x4096x64xf32>
  return %0 : tensor<2048x4096x64xf32>
}
