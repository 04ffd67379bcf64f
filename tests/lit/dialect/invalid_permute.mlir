// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{target axes are expected to be a permutation of mesh axes.}}
  %0 = mesh.permute %arg0 on @m0 mesh_axes = [0, 1] target_axes = [1] : tensor<4x8xf32> -> tensor<4x8xf32>
  return
}
