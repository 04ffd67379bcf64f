// The RFC's last stage, one device's program with mhlo collectives: it runs, is reported, verified and lowered.
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local --in-shardings '[[], [], [0]]; [[], [0]]; [[0]]' --out-shardings '[[], [], [0]]' | filecheck %s --check-prefix=GIVEN
// RUN: meshbridge run %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local | filecheck %s --check-prefix=OWN
// RUN: meshbridge report %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local | filecheck %s --check-prefix=REPORT
// RUN: meshbridge verify %testdata/rfc/mlp_1d_weight_stationary.mlir %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local | filecheck %s --check-prefix=VERIFY
// RUN: meshbridge verify %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local | filecheck %s --check-prefix=VERIFY
// RUN: meshbridge verify %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local | filecheck %s --check-prefix=VERIFY
// RUN: meshbridge partition %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local --emit local | filecheck %s --check-prefix=LOWER
// RUN: not meshbridge run %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir 2>&1 | filecheck %s --check-prefix=UNTOLD
// RUN: not meshbridge run %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --local --check 2>&1 | filecheck %s --check-prefix=CHECK-ALONE
// RUN: not meshbridge run %testdata/rfc/mlp_1d_weight_stationary_partitioned.mlir --in-shardings '[[0]]' 2>&1 | filecheck %s --check-prefix=WITHOUT
// RUN: not meshbridge run %testdata/rfc/mlp_1d_weight_stationary_materialized.mlir --local 2>&1 | filecheck %s --check-prefix=TWICE

// GIVEN: result 0: float32[2, 4, 8] P(None, None, '0')
// OWN: result 0: float32[4, 4, 4] P('0', None, None)
// REPORT:      all_gather {{.*}} 128 B
// REPORT-NEXT: reduce_scatter {{.*}} 128 B
// VERIFY: equal on
// LOWER: meshbridge.global = tensor<4x4x4xf32>
// LOWER: all_gather"(%arg0)
// UNTOLD: --local takes the program as one device's
// CHECK-ALONE: --check has no effect with --local
// WITHOUT: --in-shardings has no effect without --local
// TWICE: says already what its arguments and results are shards of
