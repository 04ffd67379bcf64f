// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{0-based mesh axis index 2 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0 = mesh.update_halo %arg0 on @m0 split_axes = [[2]] : tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{halo sizes must be specified for all split axes.}}
  %0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] halo_sizes = [1] : tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{halo sizes [2, 2] of tensor axis 0 leave a core of 0 of 4.}}
  %0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] halo_sizes = [2, 2] : tensor<4x8xf32>
  return
}
