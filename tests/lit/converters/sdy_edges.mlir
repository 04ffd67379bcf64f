// Operations that only mark edges, named computations, and what nothing uses: all of it comes back, none of it is in the way.
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to sdy | filecheck %s
// RUN: meshbridge partition %s --emit mesh | filecheck %s --check-prefix=SPLIT

sdy.mesh @m = <["x"=2, "y"=4]>

// CHECK-LABEL: func.func @main
// SPLIT-NOT: sdy.
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  // CHECK: sdy.constant dense<0>
  %c = sdy.constant dense<0> : tensor<i32>
  // CHECK: %[[B:.*]] = stablehlo.optimization_barrier {sdy.sharding = {{.*}} %arg0
  %0 = "stablehlo.optimization_barrier"(%a) {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {}]>]>}
    : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK: sdy.data_flow_edge %[[B]] : tensor<8x16xf32>
  %1 = sdy.data_flow_edge %0 : tensor<8x16xf32>
  // CHECK: sdy.named_computation<"outer">(%{{.*}}) (%[[ARG:.*]]: tensor<8x16xf32>) {
  // CHECK: sdy.data_flow_edge %[[ARG]] sharding=<@m, [{"x", ?}, {?}]>
  // CHECK: sdy.named_computation<"inner">({{.*}}) in_shardings=[<@m, [{?}, {?}]>] out_shardings=[<@m, [{"x"}, {}]>]
  %4 = sdy.named_computation<"outer">(%1) (%b: tensor<8x16xf32>) {
    %8 = sdy.data_flow_edge %b sharding=<@m, [{"x", ?}, {?}]> : tensor<8x16xf32>
    %9 = sdy.named_computation<"inner">(%8) in_shardings=[<@m, [{?}, {?}]>] out_shardings=[<@m, [{"x"}, {}]>]
        (%d: tensor<8x16xf32>) {
      %10 = stablehlo.cosine %d : tensor<8x16xf32>
      sdy.return %10 : tensor<8x16xf32>
    } : (tensor<8x16xf32>) -> tensor<8x16xf32>
    sdy.return %9 : tensor<8x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // CHECK: stablehlo.while
  // SPLIT: stablehlo.while({{.*}}) : tensor<4x16xf32>
  %5:2 = stablehlo.while(%i = %4, %j = %c) : tensor<8x16xf32>, tensor<i32>
  cond {
    %k = stablehlo.constant dense<3> : tensor<i32>
    %l = stablehlo.compare LT, %j, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  } do {
    %k = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %j, %k : tensor<i32>
    stablehlo.return %i, %n : tensor<8x16xf32>, tensor<i32>
  }
  // CHECK: %[[E:.*]] = sdy.data_flow_edge %{{.*}}#0 : tensor<8x16xf32>
  // CHECK: sdy.data_flow_edge %{{.*}}#1 : tensor<i32>
  %6 = sdy.data_flow_edge %5#0 : tensor<8x16xf32>
  %7 = sdy.data_flow_edge %5#1 : tensor<i32>
  // CHECK: sdy.reshard %[[E]] <@m, [{}, {"y"}]>
  // CHECK: sdy.all_gather [{"x"}, {}] %arg0 out_sharding=<@m, [{}, {}]>
  %dead = sdy.reshard %6 <@m, [{}, {"y"}]> : tensor<8x16xf32>
  %gone = sdy.all_gather [{"x"}, {}] %a out_sharding=<@m, [{}, {}]> : tensor<8x16xf32>
  // CHECK: stablehlo.add {{.*}}sdy.propagation_edges = #sdy.propagation_edges<
  %sum = stablehlo.add %6, %6 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {}]>]>,
    sdy.propagation_edges = #sdy.propagation_edges<[{step-1 = [{"x" = operand-0 -> [result-0]}]}]>} : tensor<8x16xf32>
  return %sum : tensor<8x16xf32>
}
