// Edges of functions, and the sharding of a token, which sdy has from jaxlib 0.10 on: both come back.
// REQUIRES: sdy-func-data-flow-edge
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to sdy | filecheck %s
// RUN: meshbridge partition %s --emit mesh | filecheck %s --check-prefix=SPLIT

sdy.mesh @m = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func private @f
func.func private @f(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK-NEXT: %[[F:.*]] = sdy.func_data_flow_edge %arg0 : tensor<8x16xf32>
  // CHECK-NEXT: stablehlo.tanh %[[F]]
  %0 = sdy.func_data_flow_edge %a : tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @main
// SPLIT-NOT: sdy.
// SPLIT: stablehlo.tanh {{.*}} : tensor<4x16xf32>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}, %t: !stablehlo.token)
    -> (tensor<8x16xf32>, !stablehlo.token) {
  // CHECK: %[[CALL:.*]] = call @f
  // CHECK: %[[EDGE:.*]] = sdy.func_data_flow_edge %[[CALL]]
  // CHECK: stablehlo.cosine %[[EDGE]]
  %0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = sdy.func_data_flow_edge %0 : tensor<8x16xf32>
  %2 = stablehlo.cosine %1 : tensor<8x16xf32>
  // CHECK: sdy.sharding_constraint %arg1 <@m, []> : !stablehlo.token
  %u = sdy.sharding_constraint %t <@m, []> : !stablehlo.token
  return %2, %u : tensor<8x16xf32>, !stablehlo.token
}
