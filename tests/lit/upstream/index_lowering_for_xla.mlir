// RUN: mesh-opt %s --test-mesh-process-multi-index-op-lowering --lower-collectives=form=local | filecheck %s
// The arithmetic that a lowering leaves is such as StableHLO has.

mesh.mesh @cube(shape = 2x3x5)

// CHECK:     %[[ID:.*]] = stablehlo.replica_id : tensor<ui32>
// CHECK:     %[[NUMBER:.*]] = stablehlo.convert %[[ID]] : (tensor<ui32>) -> tensor<i32>
// CHECK:     stablehlo.remainder %[[NUMBER]], %{{.*}} : tensor<i32>
// CHECK:     %[[ROW:.*]] = stablehlo.divide %[[NUMBER]], %{{.*}} : tensor<i32>
// CHECK:     stablehlo.remainder %[[ROW]], %{{.*}} : tensor<i32>
// CHECK-NOT: arith.
func.func @main() -> tensor<2xi32> {
  %0:2 = mesh.process_multi_index on @cube axes = [2, 1] : index, index
  %1 = arith.index_cast %0#0 : index to i32
  %2 = arith.index_cast %0#1 : index to i32
  %3 = tensor.from_elements %1, %2 : tensor<2xi32>
  return %3 : tensor<2xi32>
}
