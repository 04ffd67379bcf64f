// RUN: meshbridge convert %s --to mesh | filecheck %s
// RUN: mesh-opt %s --import-shardings --inline-calls --sharding-propagation --mesh-spmdization | filecheck %s --check-prefix=LOCAL
// RUN: meshbridge convert %s --to gspmd --plain | filecheck %s --check-prefix=GSPMD

sdy.mesh @m = <["x"=2, "y"=2]>

func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  // CHECK: %[[IN:.*]] = mesh.shard %{{.*}} to %{{.*}} annotate_for_users {meshbridge.open_dims = array<i64: 1>, meshbridge.source = "sdy.manual_computation"}
  // CHECK: %[[OUT:.*]] = sdy.manual_computation(%[[IN]]) in_shardings=[<mesh<["x"=2, "y"=2]>, [{"x"}, {?}]>]
  // CHECK: {meshbridge.manual_axes = array<i16: 0>, meshbridge.mesh = @m}
  // CHECK: mesh.shard %[[OUT]] to %{{.*}} {meshbridge.source = "sdy.manual_computation"}

  // The body is local along x already; along y its constraint is met inside.
  // LOCAL: func.func @main(%{{.*}}: tensor<4x16xf32>
  // LOCAL: %[[SLICE:.*]] = mesh.all_slice %{{.*}} on @m mesh_axes = [1] slice_axis = 1 : tensor<4x16xf32> -> tensor<4x8xf32>
  // LOCAL: stablehlo.tanh %[[SLICE]]
  // LOCAL-NOT: sdy

  // GSPMD: %[[A:.*]] = stablehlo.custom_call @Sharding({{.*}}) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}
  // GSPMD: %[[B:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%[[A]]) {{.*}} mhlo.sharding = "{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}"}
  // GSPMD: stablehlo.custom_call @Sharding(%[[B]]) {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dims={manual}}"}
  // GSPMD: stablehlo.custom_call @SPMDShardToFullShape
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@m, [{"x"}, {?}]>] out_shardings=[<@m, [{"x"}, {}]>] manual_axes={"x"}
      (%a: tensor<4x16xf32>) {
    %1 = sdy.sharding_constraint %a <@m, [{}, {"y"}]> : tensor<4x16xf32>
    %2 = stablehlo.tanh %1 : tensor<4x16xf32>
    sdy.return %2 : tensor<4x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
