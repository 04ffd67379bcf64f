// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @f() {
  // expected-error @+1 {{Undefined required mesh symbol "nope".}}
  %0:2 = mesh.mesh_shape @nope : index, index
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{Undefined required mesh symbol "f".}}
  %0:2 = mesh.mesh_shape @f : index, index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{0-based mesh axis index 2 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0 = mesh.mesh_shape @m0 axes = [2] : index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{0-based mesh axis index -1 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0 = mesh.mesh_shape @m0 axes = [-1] : index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{Mesh axes contains duplicate elements.}}
  %0:2 = mesh.mesh_shape @m0 axes = [0, 0] : index, index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{Unexpected number of results 1. Expected 2.}}
  %0 = mesh.mesh_shape @m0 : index
  return
}
