// The RFC's walk-throughs, from its own text through every stage to XLA, against the unsharded program.
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary.mlir --check | filecheck %s
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary_annotated.mlir --check | filecheck %s
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary_with_sharding_on_operation.mlir --check | filecheck %s

// CHECK: result 0: float32[2, 4, 8]
