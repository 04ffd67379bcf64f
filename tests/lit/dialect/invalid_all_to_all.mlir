// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 1. Expected 16, but got 8.}}
  %0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<4x8xf32> -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected 2, but got 4.}}
  %0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<4x8xf32> -> tensor<4x16xf32>
  return
}

// -----

mesh.mesh @m3(shape = 3)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected dynamic, but got 1.}}
  %0 = mesh.all_to_all %arg0 on @m3 mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<4x8xf32> -> tensor<1x24xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Concat axis 4 is out of bounds [0, 2).}}
  %0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 4 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m3(shape = 3)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Operand dimension size 4 is not divisible by collective device group size 3}}
  %0 = mesh.all_to_all %arg0 on @m3 mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}
