// RUN: meshbridge convert %s --to mesh | filecheck %s
// RUN: meshbridge convert %s --to sdy | filecheck %s --check-prefix=SDY
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to gspmd | filecheck %s --check-prefix=BACK

// CHECK:      mesh.mesh @mesh(shape = 2x4)
// CHECK-NEXT: mesh.mesh @maximal_mesh_3(shape = 1)
// SDY:      sdy.mesh @mesh = <["0"=2, "1"=4]>
// SDY-NEXT: sdy.mesh @maximal_mesh_3 = <[], device_ids=[3]>
// BACK-NOT: mesh
module attributes {mhlo.num_partitions = 8 : i32} {
  // SDY: %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"0"}, {}]>}
  // SDY-SAME: -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"1"}, {"0"}]>})
  // BACK: %arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
  // BACK-SAME: {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"}
  func.func @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"})
      -> (tensor<8x16xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0)}"}) {
    // CHECK: mesh.shard %{{.*}} annotate_for_users {meshbridge.open_dims = array<i64: 1>, meshbridge.source = "sdy.sharding_constraint"}
    // SDY: sdy.sharding_constraint %arg0 <@mesh, [{"0", "1"}, {?}]>
    // BACK: stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[8,1]<=[8]}"}
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[8,1]<=[8]}"}
      : (tensor<8x16xf32>) -> tensor<8x16xf32>
    // SDY: sdy.sharding_group %{{.*}} group_id=7
    // BACK: mhlo.sharding = "{unknown shard_like 7}"
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{unknown shard_like 7}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    // SDY: sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_3, []>]>
    // BACK: mhlo.sharding = "{maximal device=3}"
    stablehlo.custom_call @callback(%1) {has_side_effect = true, mhlo.sharding = "{maximal device=3}"} : (tensor<8x16xf32>) -> ()
    // SDY: sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"1"}]>, <@mesh, [{}, {}], unreduced={"0"}>]>
    // BACK: mhlo.sharding = "{{[{][{]}}devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}, {devices=[1,1,2,4]<=[8] last_tile_dims={unreduced, replicated}
    %2:2 = stablehlo.custom_call @pair(%1) {mhlo.sharding =
      "{{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}, {devices=[1,1,2,4]<=[8] last_tile_dims={unreduced, replicated}}}"}
      : (tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>)
    return %2#0 : tensor<8x16xf32>
  }
}
