// RUN: mesh-opt %s --mesh-simplifications | filecheck %s
// RUN: mesh-opt %s --test-mesh-simplifications | filecheck %s

mesh.mesh @m(shape = 2x4)
mesh.mesh @d(shape = 2x?x4)

// CHECK-LABEL: func.func @sliced
// CHECK-NEXT:    %[[S:.*]] = mesh.reduce_scatter %arg0 on @m mesh_axes = [1] scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x2xf32>
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %[[S]] on @m mesh_axes = [0] : tensor<3x2xf32> -> tensor<3x2xf32>
// CHECK-NEXT:    %[[M:.*]] = mesh.reduce_scatter %arg1 on @m mesh_axes = [1, 0] reduction = <max> scatter_axis = 0
// CHECK-NEXT:    return %[[R]], %[[M]]
func.func @sliced(%x: tensor<3x8xf32>, %y: tensor<8xi32>) -> (tensor<3x2xf32>, tensor<1xi32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<3x8xf32> -> tensor<3x8xf32>
  %1 = mesh.all_slice %0 on @m mesh_axes = [1] slice_axis = 1 : tensor<3x8xf32> -> tensor<3x2xf32>
  %2 = mesh.all_reduce %y on @m mesh_axes = [0, 1] reduction = max : tensor<8xi32> -> tensor<8xi32>
  %3 = mesh.all_slice %2 on @m mesh_axes = [1, 0] slice_axis = 0 : tensor<8xi32> -> tensor<1xi32>
  return %1, %3 : tensor<3x2xf32>, tensor<1xi32>
}

// Joined first, then sliced.
// CHECK-LABEL: func.func @joined_and_sliced
// CHECK-NEXT:    stablehlo.add %arg0, %arg1
// CHECK-NEXT:    mesh.reduce_scatter
// CHECK-NEXT:    return
func.func @joined_and_sliced(%x: tensor<8xbf16>, %y: tensor<8xbf16>) -> tensor<2xbf16> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<8xbf16> -> tensor<8xbf16>
  %1 = mesh.all_reduce %y on @m mesh_axes = [1] : tensor<8xbf16> -> tensor<8xbf16>
  %2 = stablehlo.add %0, %1 : tensor<8xbf16>
  %3 = mesh.all_slice %2 on @m mesh_axes = [1] slice_axis = 0 : tensor<8xbf16> -> tensor<2xbf16>
  return %3 : tensor<2xbf16>
}

// Sliced along an axis that is not reduced, or used whole as well.
// CHECK-LABEL: func.func @whole
// CHECK-NOT:     mesh.reduce_scatter
// CHECK:         return
func.func @whole(%x: tensor<8xf32>) -> (tensor<2xf32>, tensor<8xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %1 = mesh.all_slice %0 on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %2 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
  %3 = mesh.all_slice %2 on @m mesh_axes = [0] slice_axis = 0 : tensor<8xf32> -> tensor<4xf32>
  return %1, %2, %3 : tensor<2xf32>, tensor<8xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func private @arith_add
// CHECK-NEXT:    %[[A:.*]] = arith.addf %arg0, %arg1
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %[[A]] on @m mesh_axes = [0]
// CHECK-NEXT:    return %[[R]]
func.func private @arith_add(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = arith.addf %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// A signed maximum over devices: the unsigned one does not commute with it.
// CHECK-LABEL: func.func private @arith_max
// CHECK-NEXT:    arith.maxsi %arg0, %arg1
// CHECK-NEXT:    mesh.all_reduce
// CHECK-NEXT:    mesh.all_reduce
// CHECK-NEXT:    mesh.all_reduce
// CHECK-NEXT:    arith.maxui
func.func private @arith_max(%x: tensor<4xi32>, %y: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %2 = arith.maxsi %0, %1 : tensor<4xi32>
  %3 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %4 = mesh.all_reduce %y on @m mesh_axes = [0] reduction = max : tensor<4xi32> -> tensor<4xi32>
  %5 = arith.maxui %3, %4 : tensor<4xi32>
  return %2, %5 : tensor<4xi32>, tensor<4xi32>
}

// CHECK-LABEL: func.func private @sizes
// CHECK-DAG:     %[[U:.*]] = mesh.mesh_shape @d axes = [1] : index
// CHECK-DAG:     %[[TWO:.*]] = arith.constant 2 : index
// CHECK-DAG:     %[[FOUR:.*]] = arith.constant 4 : index
// CHECK:         return %[[TWO]], %[[U]], %[[FOUR]]
func.func private @sizes() -> (index, index, index) {
  %0:3 = mesh.mesh_shape @d : index, index, index
  return %0#0, %0#1, %0#2 : index, index, index
}
