// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m3(shape = 3)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Operand dimension size 4 is not divisible by collective device group size 3 for tensor axis 0.}}
  %0 = mesh.all_slice %arg0 on @m3 mesh_axes = [0] slice_axis = 0 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected 2, but got 4.}}
  %0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 0 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 1. Expected 8, but got 4.}}
  %0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 0 : tensor<4x8xf32> -> tensor<2x4xf32>
  return
}

// -----

mesh.mesh @md(shape = 4x?)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected dynamic, but got 2.}}
  %0 = mesh.all_slice %arg0 on @md mesh_axes = [1] slice_axis = 0 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Slice axis 2 is out of bounds [0, 2).}}
  %0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 2 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}
