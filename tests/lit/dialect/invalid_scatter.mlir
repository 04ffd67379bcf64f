// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{failed to verify that all of {input, result} have same rank}}
  %0 = mesh.scatter %arg0 on @m0 mesh_axes = [0] scatter_axis = 0 root = [0] : (tensor<4x8xf32>) -> tensor<2xf32>
  return
}
