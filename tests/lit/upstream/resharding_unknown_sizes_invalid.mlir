// RUN: mesh-opt %s --split-input-file --verify-diagnostics --test-mesh-resharding-spmdization -o /dev/null

mesh.mesh @m(shape = 2x?)

func.func @uneven(%x: tensor<7x8xf32>) -> tensor<7x8xf32> {
  %from = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %to = mesh.sharding @m split_axes = [[]] : !mesh.sharding
  %0 = mesh.shard %x to %from : tensor<7x8xf32>
  // expected-error @+1 {{cannot be resharded: a dimension of size 7 does not divide by 2 beside unknown sizes}}
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<7x8xf32>
  return %1 : tensor<7x8xf32>
}

// -----

mesh.mesh @m(shape = ?)

func.func @halo(%x: tensor<8xf32>) -> tensor<8xf32> {
  %from = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %to = mesh.sharding @m split_axes = [[0]] halo_sizes = [1, 1] : !mesh.sharding
  %0 = mesh.shard %x to %from : tensor<8xf32>
  // expected-error @+1 {{cannot be resharded: halo sizes and explicit offsets need static sizes}}
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

mesh.mesh @m(shape = ?)

func.func @partial(%x: tensor<8xf32>) -> tensor<8xf32> {
  %from = mesh.sharding @m split_axes = [[]] : !mesh.sharding
  %to = mesh.sharding @m split_axes = [[]] partial = sum [0] : !mesh.sharding
  %0 = mesh.shard %x to %from : tensor<8xf32>
  // expected-error @+1 {{cannot be resharded: making a value partial needs static sizes}}
  %1 = mesh.shard %0 to %to annotate_for_users : tensor<8xf32>
  return %1 : tensor<8xf32>
}
