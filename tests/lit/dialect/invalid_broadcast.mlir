// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{In-group device "root" has unexpected multi-index size 2. Expected 1.}}
  %0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Out of bounds coordinate 0 for in-group device "root". Got 2, but expected value in the range [0, 1].}}
  %0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [2] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{failed to verify that all of {input, result} have same shape}}
  %0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [1] : (tensor<4x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{failed to verify that all of {input, result} have same element type}}
  %0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [1] : (tensor<4x8xf32>) -> tensor<4x8xf64>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Out of bounds coordinate 0 for in-group device "root". Got -1}}
  %0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [-1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>, %arg1: index) {
  // expected-error @+1 {{"root" has 0 dynamic entries, but 1 operands for them.}}
  %0 = "mesh.broadcast"(%arg0, %arg1) {mesh = @m0, mesh_axes = array<i16: 0>, root = array<i64: 0>} : (tensor<4x8xf32>, index) -> tensor<4x8xf32>
  return
}
