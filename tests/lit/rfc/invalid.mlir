// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.cluster @mesh0(rank = 1, dim_sizes = [2])

func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @mesh0 } {
  // expected-error @+1 {{has 3 lists of axes, but a tensor of rank 1 takes 2 with the partial sum's}}
  %0 = mesh.annotate %arg0 {required = true, sharding = [[], [], [0]]} : tensor<8xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

mesh.cluster @mesh0(rank = 1, dim_sizes = [2])

// expected-error @+1 {{has mesh operations, but no mesh_cluster attribute}}
func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  %0 = mesh.annotate %arg0 {required = true, sharding = [[0]]} : tensor<8xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// expected-error @+1 {{is of rank 1, but has 2 dim_sizes}}
mesh.cluster @mesh0(rank = 1, dim_sizes = [2, 4])

// -----

mesh.cluster @mesh0(rank = 1, dim_sizes = [2])

func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @mesh0 } {
  // expected-error @+1 {{requires attribute 'sharding'}}
  %0 = mesh.annotate %arg0 {required = true} : tensor<8xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
