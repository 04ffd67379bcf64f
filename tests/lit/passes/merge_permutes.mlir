// RUN: mesh-opt %s --merge-permutes | filecheck %s
// RUN: mesh-opt %s --merge-permutes='bytes=0' | filecheck %s --check-prefix=APART
// RUN: mesh-opt %s --merge-permutes='machine=h100' | filecheck %s --check-prefix=TIME

mesh.mesh @m(shape = 2x4)

// On two devices each has one neighbour: who sends what is selected.
// CHECK-LABEL: func.func @neighbours
// CHECK:         %[[OWN:.*]] = mesh.all_slice %{{.*}} on @m mesh_axes = [0] slice_axis = 0 : tensor<2xi32> -> tensor<1xi32>
// CHECK:         %[[SENT:.*]] = stablehlo.select %{{.*}}, %arg1, %arg0 : tensor<i1>, tensor<3xf32>
// CHECK-NEXT:    %[[MOVED:.*]] = "stablehlo.collective_permute"(%[[SENT]])
// CHECK-SAME{LITERAL}: dense<[[0, 4], [1, 5], [2, 6], [3, 7], [4, 0], [5, 1], [6, 2], [7, 3]]>
// CHECK:         stablehlo.select %{{.*}}, %[[MOVED]], %{{.*}} : tensor<i1>, tensor<3xf32>
// CHECK:         stablehlo.select %{{.*}}, %[[MOVED]], %{{.*}} : tensor<i1>, tensor<3xf32>
// CHECK-NOT:     mesh.shift
func.func @neighbours(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %0 = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<3xf32> -> tensor<3xf32>
  %1 = mesh.shift %y on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<3xf32> -> tensor<3xf32>
  return %0, %1 : tensor<3xf32>, tensor<3xf32>
}

// On four, devices in the middle have two.
// CHECK-LABEL: func.func @line
// CHECK-COUNT-2: mesh.shift
// TIME-LABEL: func.func @line
// TIME-COUNT-2: mesh.shift
func.func @line(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %0 = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 1 : tensor<3xf32> -> tensor<3xf32>
  %1 = mesh.shift %y on @m mesh_axes = [1] shift_axis = 1 offset = -1 : tensor<3xf32> -> tensor<3xf32>
  return %0, %1 : tensor<3xf32>, tensor<3xf32>
}

// The same pairs of devices.
// CHECK-LABEL: func.func @same
// CHECK:         stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
// CHECK-NEXT:    "stablehlo.collective_permute"
// CHECK-NOT:     mesh.shift
// APART-LABEL: func.func @same
// APART-COUNT-2: mesh.shift
func.func @same(%x: tensor<2x3xf32>, %y: tensor<4xf32>) -> (tensor<2x3xf32>, tensor<4xf32>) {
  %0 = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<2x3xf32> -> tensor<2x3xf32>
  %1 = mesh.shift %y on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<4xf32> -> tensor<4xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<4xf32>
}

// Around four devices once, twice and thrice: each sends to each.
// CHECK-LABEL: func.func @all
// CHECK:         mesh.all_to_all %{{.*}} on @m mesh_axes = [1] split_axis = 0 concat_axis = 0 : tensor<4x5xf32> -> tensor<4x5xf32>
// CHECK-NOT:     mesh.shift
// APART-LABEL: func.func @all
// APART-COUNT-3: mesh.shift
func.func @all(%x: tensor<5xf32>, %y: tensor<5xf32>, %z: tensor<5xf32>) -> (tensor<5xf32>, tensor<5xf32>, tensor<5xf32>) {
  %0 = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<5xf32> -> tensor<5xf32>
  %1 = mesh.shift %y on @m mesh_axes = [1] shift_axis = 1 offset = 2 rotate : tensor<5xf32> -> tensor<5xf32>
  %2 = mesh.shift %z on @m mesh_axes = [1] shift_axis = 1 offset = 3 rotate : tensor<5xf32> -> tensor<5xf32>
  return %0, %1, %2 : tensor<5xf32>, tensor<5xf32>, tensor<5xf32>
}

// Another size is padded where a launch is worth it.
// CHECK-LABEL: func.func @padded
// CHECK-COUNT-2: mesh.shift
// TIME-LABEL: func.func @padded
// TIME:         stablehlo.pad
// TIME:         "stablehlo.collective_permute"
// TIME-NOT:     mesh.shift
func.func @padded(%x: tensor<3xf32>, %y: tensor<4xf32>) -> (tensor<3xf32>, tensor<4xf32>) {
  %0 = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<3xf32> -> tensor<3xf32>
  %1 = mesh.shift %y on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<4xf32> -> tensor<4xf32>
  return %0, %1 : tensor<3xf32>, tensor<4xf32>
}

// Those that need one another, or have other element types, stay.
// CHECK-LABEL: func.func @apart
// TIME-LABEL: func.func @apart
// CHECK-COUNT-3: mesh.shift
func.func @apart(%x: tensor<3xf32>, %y: tensor<3xi32>) -> (tensor<3xf32>, tensor<3xi32>) {
  %0 = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<3xf32> -> tensor<3xf32>
  %1 = stablehlo.negate %0 : tensor<3xf32>
  %2 = mesh.shift %1 on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<3xf32> -> tensor<3xf32>
  %3 = mesh.shift %y on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<3xi32> -> tensor<3xi32>
  return %2, %3 : tensor<3xf32>, tensor<3xi32>
}
