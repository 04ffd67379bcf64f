// RUN: mesh-opt %s --import-shardings --inline-calls --sharding-refinement -o %t
// RUN: filecheck %s --check-prefix=WHOLE < %t
// RUN: mesh-opt %t --mesh-spmdization | filecheck %s
// RUN: mesh-opt %s --import-shardings --inline-calls --sharding-refinement=annotate=false --mesh-spmdization | filecheck %s
// RUN: mesh-opt %s --import-shardings --inline-calls --sharding-refinement=annotate=false --mesh-spmdization -o %t.at_once
// RUN: mesh-opt %t --mesh-spmdization -o %t.read
// RUN: diff %t.at_once %t.read

// A composite with a rule is one op, with its option. It is partitioned as its body, each device on its shards.

sdy.mesh @mesh = <["a"=2, "b"=4]>

// WHOLE-LABEL: func.func @main
// WHOLE: stablehlo.composite "test.sum" %{{.*}} {decomposition = @body, meshbridge.sharding_option = #mesh.axisarray<{{\[\[0\], \[1\]\]}}>
// WHOLE-LABEL: func.func private @body

// CHECK-LABEL: func.func @main
// CHECK: %[[SHARD:.*]] = stablehlo.exponential %{{.*}} : tensor<4x4xf32>
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%[[SHARD]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK: mesh.all_reduce %[[SUM]] on @mesh mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NOT: func.func
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.composite "test.sum" %x {decomposition = @body, sdy.sharding_rule = #sdy.op_sharding_rule<
    ([i, j])->([i]) {i=8, j=16} reduction={j}, custom>} : (tensor<8x16xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

func.func private @body(%x: tensor<8x16xf32>) -> tensor<8xf32> {
  %0 = stablehlo.exponential %x : tensor<8x16xf32>
  %1 = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
