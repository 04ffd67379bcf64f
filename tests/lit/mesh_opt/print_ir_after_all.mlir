// RUN: mesh-opt %s --import-shardings --inline-calls --mlir-print-ir-after-all -o /dev/null 2>&1 | filecheck %s
// RUN: mesh-opt %s --pass-pipeline='builtin.module(import-shardings,inline-calls)' --mlir-print-ir-after-all -o /dev/null 2>&1 \
// RUN:   | filecheck %s

// CHECK:       IR Dump After import-shardings
// CHECK:       mesh.mesh @mesh(shape = 2)
// CHECK:       call @double
// CHECK:       IR Dump After inline-calls
// CHECK-NOT:   call @double
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = call @double(%a) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @double(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %a, %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}
