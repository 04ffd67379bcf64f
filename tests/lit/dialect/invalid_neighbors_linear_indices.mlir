// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @f(%arg1: index) {
  // expected-error @+1 {{Undefined required mesh symbol "x".}}
  %0:2 = mesh.neighbors_linear_indices on @x[%arg1] split_axes = [0] : index, index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg1: index) {
  // expected-error @+1 {{Unexpected device multi-index size 1. Expected 2.}}
  %0:2 = mesh.neighbors_linear_indices on @m0[%arg1] split_axes = [0] : index, index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg1: index) {
  // expected-error @+1 {{0-based mesh axis index 2 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0:2 = mesh.neighbors_linear_indices on @m0[%arg1, %arg1] split_axes = [2] : index, index
  return
}
