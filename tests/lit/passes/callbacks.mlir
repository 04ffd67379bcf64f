// A Python function that has an effect is called by one device, of global values. One that also has results is refused.
// RUN: mesh-opt %s --mesh-spmdization --split-input-file --verify-diagnostics | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @once
func.func @once(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %rows = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  // CHECK-DAG: %[[WHOLE:.*]] = mesh.all_gather {{.*}} : tensor<4x16xf32> -> tensor<8x16xf32>
  // CHECK-DAG: %[[FIRST:.*]] = stablehlo.compare EQ, {{.*}} -> tensor<i1>
  // CHECK: "stablehlo.if"(%[[FIRST]]) ({
  // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_cpu_callback(%[[WHOLE]])
  // CHECK-NEXT: stablehlo.return
  // CHECK-NEXT: }, {
  // CHECK-NEXT: stablehlo.return
  // expected-warning @+1 {{has no sharding rule: its operands are gathered}}
  stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) {has_side_effect = true} : (tensor<8x16xf32>) -> ()
  return %0 : tensor<8x16xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

func.func @with_results(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %rows = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  // expected-error@below {{calls a Python function that has an effect and results, or an order}}
  %1 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) {has_side_effect = true} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
