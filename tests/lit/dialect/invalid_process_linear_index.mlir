// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @f() {
  // expected-error @+1 {{Undefined required mesh symbol "x".}}
  %0 = mesh.process_linear_index on @x : index
  return
}
