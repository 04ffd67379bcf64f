// RUN: not mesh-opt %s --mesh-spmdization 2>&1 | filecheck %s

mesh.mesh @m(shape = 2)

func.func @f(%x: tensor<8xf32>, %n: i64) -> tensor<8xf32> {
  // CHECK: halos_unknown.mlir:7:8: error: 'mesh.sharding' op has halo sizes or offsets that only a run knows
  %s = mesh.sharding @m split_axes = [[0]] halo_sizes = [1, %n] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8xf32>
  return %0 : tensor<8xf32>
}
