// Shardings that name axes, open dimensions, groups in shardings: every word comes back.
// RUN: meshbridge convert %s --to sdy | filecheck %s --check-prefix=SDY
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to gspmd | filecheck %s
// RUN: meshbridge partition %s --emit mesh | filecheck %s --check-prefix=SPLIT

// SDY: sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>
module attributes {mhlo.num_partitions = 8 : i32} {
  // SDY: %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}
  // CHECK: %arg0: tensor<8x16xf32> {mhlo.sharding = "{mesh['x'=2,'y'=4], device_ids=(0,2,4,6,1,3,5,7), [{'x'}, {?}]}"}
  // SPLIT: %arg0: tensor<4x{{.*}}>
  func.func @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'x'}, {?}]}"})
      -> (tensor<8x16xf32> {mhlo.sharding = "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'y':(1)2}, {'y':(2)2}]}"}) {
    // SDY: sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {"y", ?}]>
    // CHECK: @Sharding(%arg0) {mhlo.sharding = "{mesh['x'=2,'y'=4], device_ids=(0,2,4,6,1,3,5,7), [{'x'}, {'y', ?}]}"
    %0 = stablehlo.custom_call @Sharding(%arg0)
      {mhlo.sharding = "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'x'}, {'y', ?}]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    // SDY: sdy.sharding_group %{{.*}} group_id=3 {meshbridge.shard_like}
    // CHECK: mhlo.sharding = "{unknown shard_like 3}"
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{unknown shard_like 3}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %2 = stablehlo.negate %1 : tensor<8x16xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{replicated shard_as 4}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %3 : tensor<8x16xf32>
  }
}
