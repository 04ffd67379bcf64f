// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m3(shape = 3)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Operand dimension size 4 is not divisible by collective device group size 3 for tensor axis 0.}}
  %0 = mesh.reduce_scatter %arg0 on @m3 mesh_axes = [0] scatter_axis = 0 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Scatter axis -1 is out of bounds [0, 2).}}
  %0 = mesh.reduce_scatter %arg0 on @m0 mesh_axes = [0] scatter_axis = -1 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}
