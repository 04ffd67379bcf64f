// Each op that is gathered is a warning, with the pass that was left out and would have given it a rule.
// RUN: mesh-opt %s --sharding-propagation --mesh-spmdization --verify-diagnostics -o /dev/null
// RUN: mesh-opt %s --sharding-propagation --mesh-spmdization -o /dev/null 2>&1 | filecheck %s --check-prefix=LEFT-OUT
// RUN: mesh-opt %s --inline-calls --legalize --sharding-propagation --mesh-spmdization -o /dev/null 2>&1 | filecheck %s

// LEFT-OUT: gathered_warnings.mlir:22:8: warning: 'stablehlo.dot' op has no sharding rule
// LEFT-OUT-NEXT: hint: run --legalize before, which rewrites it into ops that have rules
// LEFT-OUT: 'func.call' op has no sharding rule
// LEFT-OUT-NEXT: hint: run --inline-calls before, which puts the function's body in its place
// LEFT-OUT: 'stablehlo.custom_call @opaque' op has no sharding rule
// LEFT-OUT-NOT: hint

// CHECK-NOT: stablehlo.dot
// CHECK: 'stablehlo.custom_call @opaque' op has no sharding rule: its operands are gathered
// CHECK-NOT: hint
mesh.mesh @m(shape = 4)

func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<8x16xf32>, tensor<8x16xf32>) {
  %rows = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
  // expected-warning @+1 {{'stablehlo.dot' op has no sharding rule: its operands are gathered}}
  %1 = stablehlo.dot %0, %arg1 : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  // expected-warning @+1 {{'func.call' op has no sharding rule}}
  %2 = func.call @wave(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // expected-warning @+1 {{'stablehlo.custom_call @opaque' op has no sharding rule}}
  %3 = stablehlo.custom_call @opaque(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1, %2, %3 : tensor<8x4xf32>, tensor<8x16xf32>, tensor<8x16xf32>
}

func.func private @wave(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
