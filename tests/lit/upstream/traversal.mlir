// RUN: mesh-opt %s --pass-pipeline='builtin.module(func.func(sharding-propagation{traversal=forward}, mesh-spmdization))' | filecheck %s
// RUN: mesh-opt %s --pass-pipeline='builtin.module(func.func(sharding-propagation{traversal=backward}), mesh-spmdization)' | filecheck %s
// RUN: mesh-opt %s --pass-pipeline='func.func(sharding-propagation{traversal=backward-forward}),func.func(mesh-spmdization)' | filecheck %s
// RUN: mesh-opt %s --pass-pipeline='func.func( sharding-propagation{traversal=forward-backward} , mesh-spmdization )' | filecheck %s
// RUN: not mesh-opt %s --pass-pipeline='builtin.module(func.func(sharding-propagation{traversal=sideways}))' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not mesh-opt %s --pass-pipeline='builtin.module(func.func(sharding-propagation)' 2>&1 | filecheck %s --check-prefix=OPEN
// The sweeps go on until nothing changes, so where no annotations conflict every traversal ends alike.

// OPTION: error: traversal is 'sideways', expected one of
// OPEN: error: expected 'pass' or

mesh.mesh @line(shape = 2)

// CHECK: math.exp %{{.*}} : tensor<4xf32>
// CHECK: math.absf %{{.*}} : tensor<4xf32>
// CHECK: math.tanh %{{.*}} : tensor<4xf32>
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %s = mesh.sharding @line split_axes = [[0]] : !mesh.sharding
  %0 = math.exp %x : tensor<8xf32>
  %1 = math.absf %0 : tensor<8xf32>
  %2 = mesh.shard %1 to %s : tensor<8xf32>
  %3 = math.tanh %2 : tensor<8xf32>
  return %3 : tensor<8xf32>
}
