// RUN: mesh-opt %s --test-mesh-simplifications | filecheck %s
// RUN: mesh-opt %s --pass-pipeline='builtin.module(func.func(test-mesh-all-slice-op-lowering,test-mesh-simplifications,cse))' | filecheck %s

mesh.mesh @grid(shape = 4x2)
mesh.mesh @half(shape = 4x?)

// CHECK-LABEL: func.func @chain
// CHECK-SAME:      %[[X:.*]]: tensor<5xf32>, %[[Y:.*]]: tensor<5xf32>, %[[Z:.*]]: tensor<5xf32>
// CHECK-NEXT:    %[[XY:.*]] = arith.addf %[[X]], %[[Y]] : tensor<5xf32>
// CHECK-NEXT:    %[[XYZ:.*]] = arith.addf %[[Z]], %[[XY]] : tensor<5xf32>
// CHECK-NEXT:    %[[ALL:.*]] = mesh.all_reduce %[[XYZ]] on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
// CHECK-NEXT:    return %[[ALL]]
func.func @chain(%x: tensor<5xf32>, %y: tensor<5xf32>, %z: tensor<5xf32>) -> tensor<5xf32> {
  %0 = mesh.all_reduce %x on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %1 = mesh.all_reduce %y on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %2 = mesh.all_reduce %z on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %3 = arith.addf %0, %1 : tensor<5xf32>
  %4 = arith.addf %2, %3 : tensor<5xf32>
  return %4 : tensor<5xf32>
}

// Sums over unequal axes do not join.
// CHECK-LABEL: func.func @unequal_axes
// CHECK-COUNT-2: mesh.all_reduce
// CHECK:         arith.addf
func.func @unequal_axes(%x: tensor<5xf32>, %y: tensor<5xf32>) -> tensor<5xf32> {
  %0 = mesh.all_reduce %x on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %1 = mesh.all_reduce %y on @grid mesh_axes = [1] : tensor<5xf32> -> tensor<5xf32>
  %2 = arith.addf %0, %1 : tensor<5xf32>
  return %2 : tensor<5xf32>
}

// A minimum commutes with minima, not with sums.
// CHECK-LABEL: func.func @minimum
// CHECK:         %[[MIN:.*]] = arith.minsi
// CHECK:         mesh.all_reduce %[[MIN]] on @grid mesh_axes = [0] reduction = <min>
func.func @minimum(%x: tensor<5xi32>, %y: tensor<5xi32>) -> tensor<5xi32> {
  %0 = mesh.all_reduce %x on @grid mesh_axes = [0] reduction = min : tensor<5xi32> -> tensor<5xi32>
  %1 = mesh.all_reduce %y on @grid mesh_axes = [0] reduction = min : tensor<5xi32> -> tensor<5xi32>
  %2 = arith.minsi %0, %1 : tensor<5xi32>
  return %2 : tensor<5xi32>
}

// CHECK-LABEL: func.func @minimum_of_sums
// CHECK-COUNT-2: mesh.all_reduce
// CHECK:         arith.minimumf
func.func @minimum_of_sums(%x: tensor<5xf32>, %y: tensor<5xf32>) -> tensor<5xf32> {
  %0 = mesh.all_reduce %x on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %1 = mesh.all_reduce %y on @grid mesh_axes = [0] : tensor<5xf32> -> tensor<5xf32>
  %2 = arith.minimumf %0, %1 : tensor<5xf32>
  return %2 : tensor<5xf32>
}

// CHECK-LABEL: func.func @known_sizes
// CHECK-DAG:     %[[TWO:.*]] = arith.constant 2 : index
// CHECK-DAG:     %[[FOUR:.*]] = arith.constant 4 : index
// CHECK:         return %[[TWO]], %[[FOUR]] : index, index
func.func @known_sizes() -> (index, index) {
  %0:2 = mesh.mesh_shape @grid axes = [1, 0] : index, index
  return %0#0, %0#1 : index, index
}

// CHECK-LABEL: func.func @half_known
// CHECK-DAG:     %[[ASKED:.*]] = mesh.mesh_shape @half axes = [1] : index
// CHECK-DAG:     %[[FOUR:.*]] = arith.constant 4 : index
// CHECK:         return %[[FOUR]], %[[ASKED]] : index, index
func.func @half_known() -> (index, index) {
  %0:2 = mesh.mesh_shape @half : index, index
  return %0#0, %0#1 : index, index
}
