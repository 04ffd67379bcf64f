// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Invalid shift axis 1. It must be one of the grouping mesh axes.}}
  %0 = mesh.shift %arg0 on @m0 mesh_axes = [0] shift_axis = 1 offset = 1 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{requires the same element type for all operands and results}}
  %0 = mesh.shift %arg0 on @m0 mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<4x8xf32> -> tensor<4x8xf64>
  return
}
