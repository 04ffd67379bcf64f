// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Out of bounds coordinate 0 for in-group device "source". Got 3}}
  %0 = mesh.recv %arg0 on @m0 mesh_axes = [0] source = [3] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}
