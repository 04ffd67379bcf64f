// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Undefined required mesh symbol "x".}}
  %0 = mesh.all_gather %arg0 on @x gather_axis = 0 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{0-based mesh axis index 2 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [2] gather_axis = 0 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Gather axis 2 is out of bounds [0, 2).}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 2 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Gather axis -1 is out of bounds [0, 2).}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = -1 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected 8, but got 4.}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @md(shape = 4x?)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Dimension size mismatch for result axis 0. Expected dynamic, but got 8.}}
  %0 = mesh.all_gather %arg0 on @md mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{requires the same element type for all operands and results}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf64>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{result type has different rank than operands}}
  %0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  %1 = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error @+1 {{operand #0 must be non-0-ranked.tensor of any type values, but got 'tensor<f32>'}}
  %0 = mesh.all_gather %1 on @m0 mesh_axes = [0] gather_axis = 0 : tensor<f32> -> tensor<f32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{requires attribute 'gather_axis'}}
  %0 = "mesh.all_gather"(%arg0) {mesh = @m0, mesh_axes = array<i16>} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{attribute 'mesh_axes' failed to satisfy constraint: i16 dense array attribute}}
  %0 = "mesh.all_gather"(%arg0) {mesh = @m0, mesh_axes = [0], gather_axis = 0 : index} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}
