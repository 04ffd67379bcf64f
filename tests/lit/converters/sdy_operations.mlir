// What sdy has operations for: each stands as a `mesh.shard` that names it, or stays, and comes back as it was.
// RUN: meshbridge convert %s --to mesh | filecheck %s
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to sdy | filecheck %s --check-prefix=BACK

sdy.mesh @m = <["x"=2, "y"=4, "z"=2]>

func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // CHECK: mesh.shard {{.*}} annotate_for_users {meshbridge.source = "sdy.reshard"}
  // BACK: %[[A:.*]] = sdy.reshard %arg0 <@m, [{"x"}, {"y"}]>
  %0 = sdy.reshard %arg0 <@m, [{"x"}, {"y"}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.all_gather", meshbridge.source_attributes = {gathering_axes =
  // BACK: %[[B:.*]] = sdy.all_gather [{}, {"y"}] %[[A]] out_sharding=<@m, [{"x"}, {}]>
  %1 = sdy.all_gather [{}, {"y"}] %0 out_sharding=<@m, [{"x"}, {}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.all_slice"
  // BACK: %[[C:.*]] = sdy.all_slice [{}, {"y":(1)2}] %[[B]] out_sharding=<@m, [{"x"}, {"y":(1)2}]>
  %2 = sdy.all_slice [{}, {"y":(1)2}] %1 out_sharding=<@m, [{"x"}, {"y":(1)2}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.all_to_all"
  // BACK: %[[D:.*]] = sdy.all_to_all [{"x"}: 0->1] %[[C]] out_sharding=<@m, [{}, {"y":(1)2, "x"}]>
  %3 = sdy.all_to_all [{"x"}: 0->1] %2 out_sharding=<@m, [{}, {"y":(1)2, "x"}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.collective_permute"
  // BACK: %[[E:.*]] = sdy.collective_permute %[[D]] out_sharding=<@m, [{}, {"x", "y":(1)2}]>
  %4 = sdy.collective_permute %3 out_sharding=<@m, [{}, {"x", "y":(1)2}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.replicated_to_unreduced"
  // BACK: %[[F:.*]] = sdy.replicated_to_unreduced {"z"} %[[E]] out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}>
  %5 = sdy.replicated_to_unreduced {"z"} %4 out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.reduce_scatter"
  // BACK: %[[G:.*]] = sdy.reduce_scatter [{"z"}, {}] %[[F]] out_sharding=<@m, [{"z"}, {"x", "y":(1)2}]>
  %6 = sdy.reduce_scatter [{"z"}, {}] %5 out_sharding=<@m, [{"z"}, {"x", "y":(1)2}]> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.sharded_to_unreduced"
  // BACK: %[[H:.*]] = sdy.sharded_to_unreduced [{"z"}, {}] %[[G]] out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}>
  %7 = sdy.sharded_to_unreduced [{"z"}, {}] %6 out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}> : tensor<8x16xf32>
  // CHECK: meshbridge.source = "sdy.all_reduce"
  // BACK: %[[I:.*]] = sdy.all_reduce {"z"} %[[H]] out_sharding=<@m, [{}, {"x", "y":(1)2}]>
  %8 = sdy.all_reduce {"z"} %7 out_sharding=<@m, [{}, {"x", "y":(1)2}]> : tensor<8x16xf32>
  // CHECK: %[[OUT:.*]] = sdy.named_computation<"layer">(%{{.*}}) (%[[IN:.*]]: tensor<8x16xf32>)
  // CHECK: mesh.shard %[[IN]] to %{{.*}} {meshbridge.open_dims = array<i64: 1>, meshbridge.source = "sdy.named_computation"}
  // CHECK: meshbridge.source = "sdy.data_flow_edge"
  // CHECK: mesh.shard %[[OUT]] to %{{.*}} {meshbridge.source = "sdy.named_computation"}
  // BACK: sdy.named_computation<"layer">(%[[I]]) in_shardings=[<@m, [{"x"}, {?}]>] out_shardings=[<@m, [{}, {"y"}]>]
  // BACK: sdy.data_flow_edge %{{.*}} sharding=<@m, [{?}, {"z"}]>
  %9 = sdy.named_computation<"layer">(%8) in_shardings=[<@m, [{"x"}, {?}]>] out_shardings=[<@m, [{}, {"y"}]>]
      (%a: tensor<8x16xf32>) {
    %10 = sdy.data_flow_edge %a sharding=<@m, [{?}, {"z"}]> : tensor<8x16xf32>
    sdy.return %10 : tensor<8x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %9 : tensor<8x16xf32>
}
