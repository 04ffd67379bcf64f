// What is written for GSPMD names the axes of meshes that have names, and is tilings of devices for readers that know none.
// RUN: meshbridge convert %s --to gspmd | filecheck %s
// RUN: meshbridge convert %s --to gspmd | meshbridge convert - --to sdy | filecheck %s --check-prefix=BACK
// RUN: meshbridge convert %s --to gspmd --plain | filecheck %s --check-prefix=PLAIN
// RUN: not meshbridge convert %s --to sdy --plain 2>&1 | filecheck %s --check-prefix=USELESS
// RUN: not meshbridge convert %s --to mlir --plain 2>&1 | filecheck %s --check-prefix=FORMAT

// USELESS: meshbridge convert: error: --plain has no effect with --to sdy
// FORMAT: meshbridge convert: error: --plain has no effect with --to mlir

// BACK: sdy.mesh @mesh = <["data"=2, "model"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
// PLAIN-NOT: mesh[
sdy.mesh @m = <["data"=2, "model"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>

// CHECK: %arg0: tensor<8x16xf32> {mhlo.sharding = "{mesh['data'=2,'model'=4], device_ids=(7,6,5,4,3,2,1,0), [{'data'}, {}]}"}
// CHECK-SAME: %arg1: tensor<16xf32> {mhlo.sharding = "{mesh['data'=2,'model'=4], [{'model'}]}"}
// BACK: %arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// BACK-SAME: %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh_0, [{"model"}]>}
// PLAIN: %arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]4,5,6,7,0,1,2,3 last_tile_dim_replicate}"}
// PLAIN-SAME: %arg1: tensor<16xf32> {mhlo.sharding = "{devices=[4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}
func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"data"}, {}]>},
                %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<mesh<["data"=2, "model"=4]>, [{"model"}]>}) -> tensor<8x16xf32> {
  // CHECK: @Sharding(%arg0) {mhlo.sharding = "{mesh['data'=2,'model'=4], device_ids=(7,6,5,4,3,2,1,0), [{'data', ?}, {'model':(1)2}]}"}
  // BACK: sdy.sharding_constraint %arg0 <@mesh, [{"data", ?}, {"model":(1)2}]>
  // PLAIN: @Sharding(%arg0) {{.*}}mhlo.sharding = "{devices=[2,2,2]
  %0 = sdy.sharding_constraint %arg0 <@m, [{"data", ?}, {"model":(1)2}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
