// A Python function that has an effect is called by one device, of global values. Its results are sent to all.
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

// CHECK-LABEL: func.func @with_results
func.func @with_results(%t: !stablehlo.token, %x: tensor<8x16xf32>) -> (!stablehlo.token, tensor<8x16xf32>) {
  %rows = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
  %0 = mesh.shard %x to %rows : tensor<8x16xf32>
  // CHECK: %[[MADE:.*]]:2 = "stablehlo.if"({{.*}}) ({
  // CHECK-NEXT: %[[CALLED:.*]]:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg0, %{{.*}})
  // CHECK-NEXT: stablehlo.return %[[CALLED]]#0, %[[CALLED]]#1
  // CHECK-NEXT: }, {
  // CHECK: stablehlo.return %arg0, %{{.*}} : !stablehlo.token, tensor<8x16xf32>
  // CHECK: %[[SENT:.*]] = mesh.broadcast %[[MADE]]#1 on @m mesh_axes = [0, 1] root = [1, 1]
  // CHECK: return %[[MADE]]#0, %[[SENT]]
  // expected-warning @+1 {{has no sharding rule: its operands are gathered}}
  %1:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%t, %0) {has_side_effect = true, meshbridge.device = 5 : index} : (!stablehlo.token, tensor<8x16xf32>) -> (!stablehlo.token, tensor<8x16xf32>)
  return %1#0, %1#1 : !stablehlo.token, tensor<8x16xf32>
}
