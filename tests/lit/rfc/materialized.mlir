// The RFC's materialized form, whose types carry shardings as encodings, becomes a program on local shapes, and is written back.
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary_materialized.mlir | filecheck %s
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary_materialized.mlir --emit-spelling=rfc | filecheck %s --check-prefix=BACK
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary.mlir --sharding-propagation --mesh-spmdization=materialized --emit-spelling=rfc | filecheck %s --check-prefix=MADE
// RUN: not mesh-opt %testdata/rfc/mlp_1d_weight_stationary.mlir --sharding-propagation --mesh-spmdization=boundary --emit-spelling=rfc 2>&1 | filecheck %s --check-prefix=UNTOLD
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary_materialized.mlir | filecheck %s --check-prefix=RAN

// CHECK: func.func @mlp_1d_weight_stationary(%arg0: tensor<2x4x4xf32> {meshbridge.global = tensor<2x4x8xf32>,
// CHECK: mesh.all_gather %arg0 on @mesh0 mesh_axes = [0] gather_axis = 2 : tensor<2x4x4xf32> -> tensor<2x4x8xf32>
// CHECK: mesh.all_slice %{{.*}} on @mesh0 mesh_axes = [0] slice_axis = 2 : tensor<2x4x32xf32> -> tensor<2x4x16xf32>
// CHECK: mesh.reduce_scatter %{{.*}} on @mesh0 mesh_axes = [0] scatter_axis = 2 : tensor<2x4x8xf32> -> tensor<2x4x4xf32>

// BACK:      mesh.cluster @mesh0(rank = 1, dim_sizes = [2])
// BACK:      %arg1: tensor<8x32xf32, #mesh.shard<{{\[\[}}], [0{{\]\]}}>>, %arg2: tensor<32x8xf32, #mesh.shard<{{\[\[}}0{{\]\]}}>>)
// BACK-NEXT: %[[Z:.*]] = mhlo.constant dense<0.000000e+00> : tensor<2x4x32xf32>
// BACK-NEXT: mesh.all_gather %arg0 {mesh_axis = {{\[\[}}], [], [0{{\]\]}}, tensor_axis = [2]} : tensor<2x4x8xf32, #mesh.shard<{{\[\[}}], [], [0{{\]\]}}>> -> tensor<2x4x8xf32>
// BACK-NEXT: %[[H:.*]] = "mhlo.dot_general"{{.*}}sharding = {{\[\[}}], [], [0{{\]\]}}
// BACK-NEXT: %[[S:.*]] = mesh.local_split %[[Z]] {sharding = {{\[\[}}], [], [0{{\]\]}}} : tensor<2x4x32xf32> -> tensor<2x4x32xf32, #mesh.shard<{{\[\[}}], [], [0{{\]\]}}>>
// BACK-NEXT: mhlo.maximum %[[H]], %[[S]] {{.*}} : tensor<2x4x32xf32, #mesh.shard<{{\[\[}}], [], [0{{\]\]}}>>
// BACK-NEXT: %[[P:.*]] = "mhlo.dot_general"{{.*}} -> tensor<2x4x8xf32, #mesh.shard<{{\[\[}}], [], [], [0{{\]\]}}>>
// BACK-NEXT: mesh.reduce_scatter %[[P]] {mesh_axis = [0], reduction = "sum", tensor_axis = 2 : i64} : tensor<2x4x8xf32, #mesh.shard<{{\[\[}}], [], [], [0{{\]\]}}>> -> tensor<2x4x8xf32, #mesh.shard<{{\[\[}}], [], [0{{\]\]}}>>

// MADE: mesh.all_gather %arg0
// MADE: mhlo.constant dense<0.000000e+00> : tensor<2x4x32xf32, #mesh.shard<{{\[\[}}], [], [0{{\]\]}}>>
// MADE: mesh.reduce_scatter

// UNTOLD: error: 'stablehlo.dot_general' op computes on shards, and nothing gives the sharding of its result
// UNTOLD: hint: mesh-spmdization=materialized writes down the sharding of every result

// RAN: result 0: float32[2, 4, 8]
