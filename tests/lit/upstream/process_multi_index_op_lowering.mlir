// RUN: mesh-opt %s --test-mesh-process-multi-index-op-lowering | filecheck %s

mesh.mesh @line(shape = ?)
mesh.mesh @cube(shape = 2x3x5)

// CHECK-LABEL: func.func @all_axes
// CHECK:         %[[NUMBER:.*]] = mesh.process_linear_index on @cube : index
// CHECK:         %[[SHAPE:.*]]:3 = mesh.mesh_shape @cube : index, index, index
// CHECK:         %[[Z:.*]] = arith.remsi %[[NUMBER]], %[[SHAPE]]#2 : index
// CHECK:         %[[ROW:.*]] = arith.divsi %[[NUMBER]], %[[SHAPE]]#2 : index
// CHECK:         %[[Y:.*]] = arith.remsi %[[ROW]], %[[SHAPE]]#1 : index
// CHECK:         %[[X:.*]] = arith.divsi %[[ROW]], %[[SHAPE]]#1 : index
// CHECK:         return %[[X]], %[[Y]], %[[Z]] : index, index, index
func.func @all_axes() -> (index, index, index) {
  %0:3 = mesh.process_multi_index on @cube : index, index, index
  return %0#0, %0#1, %0#2 : index, index, index
}

// The coordinates come in the order of the axes, and none is computed that nobody asks for.
// CHECK-LABEL: func.func @inner_axes
// CHECK-COUNT-1: arith.divsi
// CHECK-NOT:     arith.divsi
// CHECK:         %[[Y:.*]] = arith.remsi
// CHECK-NOT:     mesh.process_multi_index
func.func @inner_axes() -> (index, index) {
  %0:2 = mesh.process_multi_index on @cube axes = [2, 1] : index, index
  return %0#0, %0#1 : index, index
}

// CHECK-LABEL: func.func @dynamic_line
// CHECK:         %[[NUMBER:.*]] = mesh.process_linear_index on @line : index
// CHECK:         return %[[NUMBER]] : index
func.func @dynamic_line() -> index {
  %0 = mesh.process_multi_index on @line axes = [0] : index
  return %0 : index
}
