// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{Unexpected number of results 1. Expected 2.}}
  %0 = mesh.process_multi_index on @m0 : index
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f() {
  // expected-error @+1 {{0-based mesh axis index 5 is out of bounds. The referenced mesh "m0" is of rank 2.}}
  %0 = mesh.process_multi_index on @m0 axes = [5] : index
  return
}
