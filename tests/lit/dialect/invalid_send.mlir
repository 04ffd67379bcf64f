// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{In-group device "destination" has unexpected multi-index size 2. Expected 1.}}
  %0 = mesh.send %arg0 on @m0 mesh_axes = [0] destination = [0, 0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}
