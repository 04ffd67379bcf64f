// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @f(%arg1: index, %arg3: !mesh.sharding) {
  // expected-error @+1 {{Unexpected number of results 1. Expected 2.}}
  %0 = mesh.shard_shape 8x? %arg3 %arg1 : index
  return
}
