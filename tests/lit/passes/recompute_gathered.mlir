// RUN: mesh-opt %s --recompute-gathered | filecheck %s

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @gathered
// CHECK:         %[[X:.*]] = mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
// CHECK:         %[[TANH:.*]] = stablehlo.tanh %[[X]] : tensor<12x2xf32>
// CHECK-NOT:     mesh.all_gather
// CHECK:         return %[[X]], %[[TANH]]
func.func @gathered(%x: tensor<3x2xf32>) -> (tensor<12x2xf32>, tensor<12x2xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  %1 = stablehlo.tanh %x : tensor<3x2xf32>
  %2 = mesh.all_gather %1 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  return %0, %2 : tensor<12x2xf32>, tensor<12x2xf32>
}

// Of several, with constants, whatever stands first; what is computed is computed once.
// CHECK-LABEL: func.func @several
// CHECK-COUNT-2: mesh.all_gather %{{.*}} : tensor<3x2xf32> -> tensor<12x2xf32>
// CHECK-NOT:     mesh.all_gather
// CHECK:         stablehlo.multiply %{{.*}}, %{{.*}} : tensor<12x2xf32>
// CHECK-NEXT:    %[[BOTH:.*]] = stablehlo.add
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[BOTH]], %[[BOTH]] : tensor<12x2xf32>
// CHECK-NEXT:    return %[[SUM]]
func.func @several(%x: tensor<3x2xf32>, %y: tensor<3x2xf32>) -> (tensor<12x2xf32>, tensor<12x2xf32>, tensor<12x2xf32>) {
  %two = stablehlo.constant dense<2.0> : tensor<3x2xf32>
  %0 = stablehlo.multiply %x, %two : tensor<3x2xf32>
  %1 = stablehlo.add %0, %y : tensor<3x2xf32>
  %2 = stablehlo.add %1, %1 : tensor<3x2xf32>
  %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  %4 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  %5 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  return %3, %4, %5 : tensor<12x2xf32>, tensor<12x2xf32>, tensor<12x2xf32>
}

// Gathered along other axes or another dimension; computed with what differs from device to device; rows that are moved about.
// CHECK-LABEL: func.func @apart
// CHECK-COUNT-4: mesh.all_gather
func.func @apart(%x: tensor<3x2xf32>, %y: tensor<3x2xf32>) -> (tensor<12x2xf32>, tensor<3x8xf32>, tensor<12x2xf32>, tensor<12x2xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  %1 = stablehlo.tanh %x : tensor<3x2xf32>
  %2 = mesh.all_gather %1 on @m mesh_axes = [1] gather_axis = 1 : tensor<3x2xf32> -> tensor<3x8xf32>
  %3 = stablehlo.add %x, %y : tensor<3x2xf32>
  %4 = mesh.all_gather %3 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  %5 = stablehlo.reverse %x, dims = [0] : tensor<3x2xf32>
  %6 = mesh.all_gather %5 on @m mesh_axes = [1] gather_axis = 0 : tensor<3x2xf32> -> tensor<12x2xf32>
  return %0, %2, %4, %6 : tensor<12x2xf32>, tensor<3x8xf32>, tensor<12x2xf32>, tensor<12x2xf32>
}
