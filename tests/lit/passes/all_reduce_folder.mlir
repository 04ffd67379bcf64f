// RUN: mesh-opt %s --all-reduce-folder | filecheck %s

mesh.mesh @m(shape = 2x2x2)

// CHECK-LABEL: func.func @chain
// CHECK-NEXT:    %[[R:.*]] = mesh.all_reduce %arg0 on @m mesh_axes = [0, 1, 2] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    return %[[R]]
func.func @chain(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = mesh.all_reduce %1 on @m mesh_axes = [2] : tensor<4xf32> -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// A sum over one axis twice counts twice; a maximum does not.
// CHECK-LABEL: func.func @same_axis
// CHECK-COUNT-3: mesh.all_reduce
// CHECK-NOT:     mesh.all_reduce
func.func @same_axis(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %2 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0, 1] reduction = max : tensor<4xf32> -> tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @kept
// CHECK-COUNT-6: mesh.all_reduce
func.func @kept(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %2 = mesh.all_reduce %x on @m mesh_axes = [2] : tensor<4xf32> -> tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [1] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %4 = mesh.all_reduce %i on @m mesh_axes = [0] reduction = average : tensor<4xi32> -> tensor<4xi32>
  %5 = mesh.all_reduce %4 on @m mesh_axes = [1] reduction = average : tensor<4xi32> -> tensor<4xi32>
  return %0, %1, %3, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}
