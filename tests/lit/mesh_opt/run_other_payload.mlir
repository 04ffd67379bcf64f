// A payload that XLA does not compile is partitioned, and refused by `run` where it stands.
// RUN: meshbridge partition %s -o - --emit local | filecheck %s
// RUN: not meshbridge run %s 2>&1 | filecheck %s --check-prefix=RAN

mesh.mesh @m(shape = 4)

// CHECK: %arg0: tensor<2xf32>
func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %s : tensor<8xf32>
  // CHECK: math.exp %{{.*}} : tensor<2xf32>
  // RAN: {{.*}}run_other_payload.mlir:14:8: error: 'math.exp' op cannot be compiled by XLA, which takes StableHLO and CHLO
  // RAN-NEXT: hint: {{.*}} All such ops: arith.addf, math.exp
  %1 = math.exp %0 : tensor<8xf32>
  %2 = arith.addf %1, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}
