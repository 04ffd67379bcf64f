// The RFC's materialized form, whose types carry shardings as encodings, becomes a program on local shapes.
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary_materialized.mlir | filecheck %s

// CHECK: func.func @mlp_1d_weight_stationary(%arg0: tensor<2x4x4xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<16x8xf32>) -> tensor<2x4x4xf32>
// CHECK: mesh.all_gather %arg0 on @mesh0 mesh_axes = [0] gather_axis = 2 : tensor<2x4x4xf32> -> tensor<2x4x8xf32>
// CHECK: mesh.all_slice %{{.*}} on @mesh0 mesh_axes = [0] slice_axis = 2 : tensor<2x4x32xf32> -> tensor<2x4x16xf32>
// CHECK: mesh.reduce_scatter %{{.*}} on @mesh0 mesh_axes = [0] scatter_axis = 2 : tensor<2x4x8xf32> -> tensor<2x4x4xf32>
