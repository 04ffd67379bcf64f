// The RFC's first walk-through, read from its own spelling, and written back.
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary.mlir | filecheck %s
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary.mlir --emit-spelling=rfc | filecheck %s --check-prefix=BACK

// CHECK: mesh.mesh @mesh0(shape = 2)
// CHECK: func.func @mlp(
// CHECK-NOT: mesh_cluster
// CHECK: %[[S:.*]] = mesh.sharding @mesh0 split_axes = {{\[\[}}], [], [0{{\]\]}} : !mesh.sharding
// CHECK: %[[X:.*]] = mesh.shard %arg0 to %[[S]] {meshbridge.required = true} : tensor<2x4x8xf32>
// CHECK: %[[H:.*]] = stablehlo.dot_general %[[X]], %arg1, contracting_dims = [2] x [0]
// CHECK: %[[Y:.*]] = stablehlo.dot_general
// CHECK: %[[P:.*]] = mesh.sharding @mesh0 split_axes = {{\[\[}}], [], [{{\]\]}} partial = sum[0] : !mesh.sharding
// CHECK: %[[Z:.*]] = mesh.shard %[[Y]] to %[[P]] {meshbridge.required = true} : tensor<2x4x8xf32>
// CHECK: mesh.shard %[[Z]] to %{{.*}} annotate_for_users {meshbridge.required = true} : tensor<2x4x8xf32>

// BACK: mesh.cluster @mesh0(rank = 1, dim_sizes = [2])
// BACK: attributes {mesh_cluster = @mesh0}
// BACK: mesh.annotate %arg0 {required = true, sharding = {{\[\[}}], [], [0{{\]\]}}} : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
// BACK: "mhlo.dot_general"
// BACK: mhlo.maximum
// BACK: mesh.annotate %{{.*}} {required = true, sharding = {{\[\[}}], [], [], [0{{\]\]}}}
// BACK: mesh.annotate %{{.*}} {as_result = false, required = true, sharding = {{\[\[}}], [], [0{{\]\]}}}
