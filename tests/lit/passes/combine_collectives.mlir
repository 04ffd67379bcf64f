// RUN: mesh-opt %s --combine-collectives | filecheck %s
// RUN: mesh-opt %s --combine-collectives='bytes=32' | filecheck %s --check-prefix=SMALL
// RUN: mesh-opt %s --combine-collectives='bytes=0' | filecheck %s --check-prefix=NONE

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @sums
// CHECK:         stablehlo.concatenate %{{.*}}, %arg1, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
// CHECK-NEXT:    mesh.all_reduce %{{.*}} on @m mesh_axes = [1, 0] : tensor<10xf32> -> tensor<10xf32>
// CHECK-NOT:     mesh.all_reduce
// SMALL-LABEL: func.func @sums
// SMALL-COUNT-2: mesh.all_reduce
// NONE-LABEL: func.func @sums
// NONE-COUNT-2: mesh.all_reduce
func.func @sums(%x: tensor<2x3xf32>, %y: tensor<4xf32>) -> (tensor<2x3xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<2x3xf32> -> tensor<2x3xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [1, 0] : tensor<4xf32> -> tensor<4xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<4xf32>
}

// Along different dimensions.
// CHECK-LABEL: func.func @gathers
// CHECK:         mesh.all_gather %{{.*}} on @m mesh_axes = [1] gather_axis = 0 : tensor<1x13xf32> -> tensor<4x13xf32>
// CHECK-NOT:     mesh.all_gather
func.func @gathers(%x: tensor<2x3xf32>, %y: tensor<4xf32>, %z: tensor<3x1xf32>) -> (tensor<2x12xf32>, tensor<16xf32>, tensor<12x1xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 1 : tensor<2x3xf32> -> tensor<2x12xf32>
  %1 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<4xf32> -> tensor<16xf32>
  %2 = mesh.all_gather %z on @m mesh_axes = [1] gather_axis = 0 : tensor<3x1xf32> -> tensor<12x1xf32>
  return %0, %1, %2 : tensor<2x12xf32>, tensor<16xf32>, tensor<12x1xf32>
}

// CHECK-LABEL: func.func @scatters
// CHECK:         mesh.reduce_scatter %{{.*}} on @m mesh_axes = [1, 0] reduction = <max> scatter_axis = 0 : tensor<8x5xf32> -> tensor<1x5xf32>
// CHECK-NOT:     mesh.reduce_scatter
func.func @scatters(%x: tensor<3x8xf32>, %y: tensor<16xf32>) -> (tensor<3x1xf32>, tensor<2xf32>) {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1, 0] reduction = <max> scatter_axis = 1 : tensor<3x8xf32> -> tensor<3x1xf32>
  %1 = mesh.reduce_scatter %y on @m mesh_axes = [1, 0] reduction = <max> scatter_axis = 0 : tensor<16xf32> -> tensor<2xf32>
  return %0, %1 : tensor<3x1xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @exchanges
// CHECK:         mesh.all_to_all %{{.*}} on @m mesh_axes = [1] split_axis = 0 concat_axis = 0 : tensor<4x10xf32> -> tensor<4x10xf32>
// CHECK-NOT:     mesh.all_to_all
func.func @exchanges(%x: tensor<3x8xf32>, %y: tensor<4x2x2xf32>) -> (tensor<12x2xf32>, tensor<1x2x8xf32>) {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : tensor<3x8xf32> -> tensor<12x2xf32>
  %1 = mesh.all_to_all %y on @m mesh_axes = [1] split_axis = 0 concat_axis = 2 : tensor<4x2x2xf32> -> tensor<1x2x8xf32>
  return %0, %1 : tensor<12x2xf32>, tensor<1x2x8xf32>
}

// What uses the first moves after the combined one.
// CHECK-LABEL: func.func @follower
// CHECK:         mesh.all_reduce
// CHECK:         stablehlo.negate
// CHECK-NOT:     mesh.all_reduce
func.func @follower(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  %2 = stablehlo.abs %y : tensor<4xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>
}

// The same twice, once with a dimension of size one, and another one.
// CHECK-LABEL: func.func @alike
// CHECK:         %[[A:.*]] = mesh.all_gather %{{.*}} : tensor<1x6xf32> -> tensor<4x6xf32>
// CHECK-NOT:     mesh.all_gather
// CHECK:         stablehlo.reshape {{.*}} -> tensor<1x12xf32>
// CHECK:         return
func.func @alike(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<1x12xf32>, tensor<12xf32>, tensor<12xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<3xf32>) -> tensor<1x3xf32>
  %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<1x3xf32>
  %2 = stablehlo.divide %0, %1 : tensor<1x3xf32>
  %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 1 : tensor<1x3xf32> -> tensor<1x12xf32>
  %4 = stablehlo.constant dense<2.0> : tensor<3xf32>
  %5 = stablehlo.divide %x, %4 : tensor<3xf32>
  %6 = mesh.all_gather %5 on @m mesh_axes = [1] gather_axis = 0 : tensor<3xf32> -> tensor<12xf32>
  %7 = stablehlo.divide %y, %4 : tensor<3xf32>
  %8 = mesh.all_gather %7 on @m mesh_axes = [1] gather_axis = 0 : tensor<3xf32> -> tensor<12xf32>
  return %3, %6, %8 : tensor<1x12xf32>, tensor<12xf32>, tensor<12xf32>
}

// Uses in another block come after both.
// CHECK-LABEL: func.func private @blocks
// CHECK:         mesh.all_reduce
// CHECK-NOT:     mesh.all_reduce
// CHECK:         cf.br
// CHECK:         return
func.func private @blocks(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  cf.br ^next
^next:
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// The second needs the first; other kinds, axes and element types.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-5: mesh.all_reduce
func.func @kept(%x: tensor<4xf32>, %n: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  %2 = mesh.all_reduce %1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %3 = mesh.all_reduce %x on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %4 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
  %5 = mesh.all_reduce %n on @m mesh_axes = [0] : tensor<4xi32> -> tensor<4xi32>
  return %2, %3, %4, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}

// Both pairs move what uses both of their first: after the last of all.
// CHECK-LABEL: func.func @shared_follower
// CHECK-COUNT-2: mesh.all_reduce
// CHECK-NOT:     mesh.all_reduce
// CHECK:         stablehlo.subtract
func.func @shared_follower(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %y on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<4xf32>
  %3 = mesh.all_reduce %z on @m mesh_axes = [0] reduction = max : tensor<4xf32> -> tensor<4xf32>
  %4 = mesh.all_reduce %w on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// What each of three relays sends at first travels together, and so does what each sends then. No reshape undoes another.
// CHECK-LABEL: func.func @relays
// CHECK-NOT:     stablehlo.reshape
// CHECK:         mesh.all_to_all %{{.*}} tensor<2x9xf32> -> tensor<2x9xf32>
// CHECK:         mesh.all_to_all %{{.*}} tensor<2x9xf32> -> tensor<2x9xf32>
// CHECK-NOT:     mesh.all_to_all
// CHECK:         return
func.func @relays(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>, %z: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
  %0 = mesh.all_to_all %x on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  %2 = mesh.all_to_all %y on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  %3 = mesh.all_to_all %2 on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  %4 = mesh.all_to_all %z on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  %5 = mesh.all_to_all %4 on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : tensor<2x3xf32> -> tensor<2x3xf32>
  return %1, %3, %5 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
}
