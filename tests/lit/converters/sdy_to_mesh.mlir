// RUN: meshbridge convert %s --to mesh | filecheck %s
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to sdy | filecheck %s --check-prefix=BACK

// CHECK:      mesh.mesh @m(shape = 2x2x4) {meshbridge.axis_digits = array<i64: 1, 2>, meshbridge.axis_names = ["x", "y"], stablehlo.mesh = {axes = []}}
// CHECK-NEXT: mesh.mesh @reversed(shape = 4) {meshbridge.axis_names = ["a"], meshbridge.device_ids = array<i64: 3, 2, 1, 0>}
// CHECK-NEXT: mesh.mesh @one(shape = 1) {meshbridge.axis_names = [], meshbridge.device_ids = array<i64: 5>}
// BACK:      sdy.mesh @m = <["x"=2, "y"=8]> {stablehlo.mesh = {axes = []}}
// BACK-NEXT: sdy.mesh @reversed = <["a"=4], device_ids=[3, 2, 1, 0]>
// BACK-NEXT: sdy.mesh @one = <[], device_ids=[5]>
sdy.mesh @m = <["x"=2, "y"=8]> {stablehlo.mesh = {axes = []}}
sdy.mesh @reversed = <["a"=4], device_ids=[3, 2, 1, 0]>
sdy.mesh @one = <[], device_ids=[5]>

// CHECK: func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>)
// CHECK: %[[ROWS:.*]] = mesh.sharding @m split_axes = {{\[\[0\], \[\]\]}}
// CHECK: %[[X:.*]] = mesh.shard %arg0 to %[[ROWS]] {meshbridge.open_dims = array<i64: 1>} : tensor<8x16xf32>
// CHECK-DAG: %[[RESULT:.*]] = mesh.sharding @m split_axes = {{\[\[0\], \[2\]\]}}
// CHECK-DAG: %[[COLUMNS:.*]] = mesh.sharding @m split_axes = {{\[\[\], \[1, 2\]\]}}
// CHECK-DAG: %[[SUM:.*]] = mesh.sharding @m split_axes = {{\[\[\], \[\]\]}} partial = sum[0]
// CHECK-DAG: %[[REVERSED:.*]] = mesh.sharding @reversed split_axes = {{\[\[0\], \[\]\]}}
// BACK: func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}, %arg1: tensor<8x16xf32>)
// BACK-SAME: -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y":(2)4}p1]>}, tensor<8x16xf32>)
func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}, %arg1: tensor<8x16xf32>)
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y":(2)4}p1]>}, tensor<8x16xf32>) {
  // An attribute of an operation speaks of its result.
  // CHECK: %[[TANH:.*]] = stablehlo.tanh %[[X]]
  // CHECK: %[[Y:.*]] = mesh.shard %[[TANH]] to %[[COLUMNS]] {meshbridge.replicated_axes = array<i16: 0>}
  // BACK: stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {"y"}], replicated={"x"}>]>}
  %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {"y"}], replicated={"x"}>]>} : tensor<8x16xf32>
  // A constraint with uses speaks of them, one without of the definition.
  // CHECK: mesh.shard %[[Y]] to %[[SUM]] annotate_for_users {meshbridge.source = "sdy.sharding_constraint"}
  // BACK: %[[BACK:.*]] = sdy.sharding_constraint %{{.*}} <@m, [{}, {}], unreduced={"x"}>
  %1 = sdy.sharding_constraint %0 <@m, [{}, {}], unreduced={"x"}> : tensor<8x16xf32>
  // CHECK: %[[ADD:.*]] = stablehlo.add
  // BACK: %[[ADD:.*]] = stablehlo.add %[[BACK]]
  %2 = stablehlo.add %1, %0 : tensor<8x16xf32>
  // CHECK: %[[Z:.*]] = mesh.shard %[[ADD]] to %[[REVERSED]] {meshbridge.source = "sdy.sharding_constraint"}
  // BACK: sdy.sharding_constraint %[[ADD]] <@reversed, [{"a"}, {}]>
  %3 = sdy.sharding_constraint %2 <@reversed, [{"a"}, {}]> : tensor<8x16xf32>
  // What only sdy has stays, and names the mesh by its contents while there is no sdy.mesh.
  // CHECK: sdy.sharding_group %[[Z]] group_id=3
  // CHECK: %[[BARRIER:.*]] = sdy.propagation_barrier %[[Z]] allowed_direction=BACKWARD
  // CHECK: custom_call @callback{{.*}}sdy.sharding = #sdy.sharding_per_value<[<mesh<[], device_ids=[5]>, []>]>
  // BACK: sdy.sharding_group %[[ADD]] group_id=3
  // BACK: custom_call @callback{{.*}}sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>
  sdy.sharding_group %2 group_id=3 : tensor<8x16xf32>
  %4 = sdy.propagation_barrier %2 allowed_direction=BACKWARD : tensor<8x16xf32>
  stablehlo.custom_call @callback(%arg0) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}
    : (tensor<8x16xf32>) -> ()
  // CHECK: %[[R:.*]] = mesh.shard %[[BARRIER]] to %[[RESULT]] annotate_for_users {meshbridge.priorities = array<i64: -1, 1>}
  // CHECK: return %[[R]], %[[Z]]
  return %4, %2 : tensor<8x16xf32>, tensor<8x16xf32>
}
