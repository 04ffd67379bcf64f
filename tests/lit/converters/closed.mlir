// RUN: meshbridge convert %s --to sdy --closed | filecheck %s
// RUN: meshbridge convert %s --to gspmd --closed | filecheck %s --check-prefix=GSPMD

// CHECK-NOT: ?
// CHECK-NOT: meshbridge
// GSPMD-NOT: unspecified_dims
sdy.mesh @m = <["data"=2, "model"=4]>

// CHECK: %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"data"}, {}]>}
// CHECK: %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"model"}]>}
// CHECK-SAME: -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@m, [{"data"}, {"model"}]>})
// GSPMD: %arg1: tensor<16x32xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}
func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"data"}, {}]>},
                %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"model"}]>}) -> tensor<8x32xf32> {
  // CHECK: stablehlo.dot_general{{.*}}{sdy.sharding = #sdy.sharding_per_value<[<@m, [{"data"}, {"model"}]>]>}
  // GSPMD: stablehlo.dot_general{{.*}}{mhlo.sharding = "{devices=[2,4]<=[8]}"}
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = sdy.sharding_constraint %0 <@m, [{"data"}, {?}]> : tensor<8x32xf32>
  // CHECK: stablehlo.tanh{{.*}}{sdy.sharding = #sdy.sharding_per_value<[<@m, [{"data"}, {"model"}]>]>}
  %2 = stablehlo.tanh %1 : tensor<8x32xf32>
  return %2 : tensor<8x32xf32>
}
