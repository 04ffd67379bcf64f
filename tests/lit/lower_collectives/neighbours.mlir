// RUN: mesh-opt %s --lower-collectives | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: @rotate
// CHECK: source_target_pairs = dense<{{\[\[}}0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]]>
func.func @rotate(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<2xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CHECK-LABEL: @shift_down
// CHECK: source_target_pairs = dense<{{\[\[}}2, 0], [3, 1], [6, 4], [7, 5]]>
func.func @shift_down(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = mesh.shift %x on @m mesh_axes = [0, 1] shift_axis = 1 offset = -2 : tensor<2xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CHECK-LABEL: @rotate_once_around
// CHECK-NEXT: return %arg0
func.func @rotate_once_around(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 4 rotate : tensor<2xf32> -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// One cell up from the shard below, two cells down from the shard above; what lies outside of the tensor stays.
// CHECK-LABEL: @update_halo
// CHECK: %[[CORE:.*]] = stablehlo.slice %arg0 [1:4]
// CHECK: %[[LAST:.*]] = stablehlo.slice %[[CORE]] [2:3]
// CHECK: %[[BEFORE:.*]] = "stablehlo.collective_permute"(%[[LAST]]) {{.*}} dense<{{\[\[}}0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [6, 7]]>
// CHECK: %[[FIRST:.*]] = stablehlo.slice %[[CORE]] [0:2]
// CHECK: %[[AFTER:.*]] = "stablehlo.collective_permute"(%[[FIRST]]) {{.*}} dense<{{\[\[}}1, 0], [2, 1], [3, 2], [5, 4], [6, 5], [7, 6]]>
// CHECK: %[[NEW:.*]] = stablehlo.concatenate %[[BEFORE]], %[[CORE]], %[[AFTER]], dim = 0
// CHECK: stablehlo.select %{{.*}}, %[[NEW]], %arg0
func.func @update_halo(%x: tensor<6xf32>) -> tensor<6xf32> {
  %0 = mesh.update_halo %x on @m split_axes = [[1]] halo_sizes = [1, 2] : tensor<6xf32>
  return %0 : tensor<6xf32>
}

// CHECK-LABEL: @permute
// CHECK: source_target_pairs = dense<{{\[\[}}0, 0], [1, 4], [2, 1], [3, 5], [4, 2], [5, 6], [6, 3], [7, 7]]>
func.func @permute(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "mesh.permute"(%x) {mesh = @m, mesh_axes = array<i16: 0, 1>, target_axes = array<i16: 1, 0>} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
