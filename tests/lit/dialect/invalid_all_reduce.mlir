// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{requires the same shape for all operands and results}}
  %0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [0] : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Mesh axes contains duplicate elements.}}
  %0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [1, 1] : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{reduction bitwise_or is not defined for element type f32.}}
  %0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [0] reduction = <bitwise_or> : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{reduction of f32 cannot accumulate in i1.}}
  %0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [0] : tensor<4x8xf32> -> tensor<4x8xi1>
  return
}
