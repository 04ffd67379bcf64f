// RUN: not mesh-opt %s --lower-collectives 2>&1 | filecheck %s
// RUN: not mesh-opt %s --mesh-spmdization 2>&1 | filecheck %s --check-prefix=PARTITION
// RUN: not meshbridge run %s 2>&1 | filecheck %s --check-prefix=PARTITION
// A program in LLVM 22's words is answered in them.

shard.grid @m(shape = 2)

// CHECK:       wording_llvm22.mlir:14:8: error: 'shard.recv' op has no shard.send to match it
// CHECK-NEXT:  hint: a shard.send of the same grid, grid_axes and type
// PARTITION:      'shard.recv' op stands in a program that is not partitioned yet, where only shard.sharding and shard.shard may
// PARTITION-NEXT: hint: --local takes it as one device
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  // A comment.
  %0 = shard.recv %a on @m grid_axes = [0] source = [0] : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
