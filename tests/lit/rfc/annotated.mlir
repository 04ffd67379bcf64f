// The first walk-through after annotation completion: what was inferred is a hint, and a result that the user has annotated for
// its use is annotated once.
// RUN: mesh-opt %testdata/rfc/mlp_1d_weight_stationary.mlir --sharding-propagation --emit-spelling=rfc | filecheck %s

// CHECK-DAG:  mesh.annotate %arg1 {required = false, sharding = {{\[\[}}], [0{{\]\]}}}
// CHECK-DAG:  %[[X:.*]] = mesh.annotate %arg0 {required = true, sharding = {{\[\[}}], [], [0{{\]\]}}}
// CHECK:      mesh.annotate %[[X]] {as_result = false, required = false, sharding = []}
// CHECK:      mhlo.maximum
// CHECK:      %[[Y:.*]] = "mhlo.dot_general"
// CHECK-NEXT: %[[P:.*]] = mesh.annotate %[[Y]] {required = true, sharding = {{\[\[}}], [], [], [0{{\]\]}}}
// CHECK-NEXT: %[[R:.*]] = mesh.annotate %[[P]] {as_result = false, required = true, sharding = {{\[\[}}], [], [0{{\]\]}}}
// CHECK-NEXT: return %[[R]]
