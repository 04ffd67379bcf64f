// The RFC's second walk-through: the sharding of an operation's loops becomes a discardable attribute.
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary_with_sharding_on_operation.mlir | filecheck %s

// CHECK: mesh.mesh @mesh0(shape = 8)
// CHECK: stablehlo.dot_general {{.*}} {meshbridge.sharding_option = #mesh.axisarray<{{\[\[}}], [], [], [0{{\]\]}}>}
