// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  %s = mesh.sharding @m split_axes = [[], [], [0]] : !mesh.sharding
  // expected-error @+1 {{sharding has 3 split axes lists, but the tensor is of rank 2.}}
  %0 = mesh.shard %arg0 to %s : tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  %s = mesh.sharding @m split_axes = [[0]] halo_sizes = [0, 3] : !mesh.sharding
  // expected-error @+1 {{halo size 3 of tensor axis 0 exceeds the shard size 2.}}
  %0 = mesh.shard %arg0 to %s annotate_for_users : tensor<4x8xf32>
  return
}

// -----

mesh.mesh @m(shape = 2x4)

func.func @f(%arg0: tensor<4x8xf32>) {
  %s = mesh.sharding @m split_axes = [[0]] sharded_dims_offsets = [0, 1, 5] : !mesh.sharding
  // expected-error @+1 {{sharded dims offsets of tensor axis 0 end at 5, but the dimension is of size 4.}}
  %0 = mesh.shard %arg0 to %s : tensor<4x8xf32>
  return
}

// -----

func.func @f(%arg0: tensor<4x8xf32>, %arg1: index) {
  // expected-error @+1 {{expects different type than prior uses: '!mesh.sharding' vs 'index'}}
  %0 = mesh.shard %arg0 to %arg1 : tensor<4x8xf32>
  return
}
