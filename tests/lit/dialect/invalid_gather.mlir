// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Gather axis 5 is out of bounds [0, 2).}}
  %0 = mesh.gather %arg0 on @m0 mesh_axes = [0] gather_axis = 5 root = [1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m0(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  // expected-error @+1 {{Out of bounds coordinate 0 for in-group device "root". Got 3, but expected value in the range [0, 1].}}
  %0 = mesh.gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 root = [3] : (tensor<4x8xf32>) -> tensor<8x8xf32>
  return
}
