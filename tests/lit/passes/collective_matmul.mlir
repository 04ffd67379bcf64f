// RUN: mesh-opt %s --collective-matmul='least=1' | filecheck %s
// RUN: mesh-opt %s --collective-matmul='least=1 steps=2' | filecheck %s --check-prefix=SMALL
// RUN: mesh-opt %s --collective-matmul | filecheck %s --check-prefix=KEPT
// RUN: mesh-opt %s --collective-matmul='machine=v5e least=1' | filecheck %s --check-prefix=PRICED

mesh.mesh @m(shape = 2x4)

// Rows of activations are gathered, and what the product contracts is divided: partial products add up.
// CHECK-LABEL: func.func @summed
// CHECK:         %[[X:.*]] = stablehlo.slice %arg0 [0:2, 0:2]
// CHECK:         %[[G:.*]] = mesh.all_gather %[[X]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2x2xbf16> -> tensor<8x2xbf16>
// CHECK-COUNT-3: mesh.all_gather
// CHECK:         %[[W:.*]] = stablehlo.slice %arg1 [0:2, 0:5]
// CHECK:         %[[P:.*]] = stablehlo.dot_general %[[G]], %[[W]], contracting_dims = [1] x [0] : (tensor<8x2xbf16>, tensor<2x5xbf16>) -> tensor<8x5xbf16>
// CHECK:         %[[Q:.*]] = stablehlo.dot_general
// CHECK:         stablehlo.add %[[P]], %[[Q]]
// CHECK-NOT:     mesh.all_gather
// KEPT-LABEL: func.func @summed
// KEPT:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
// PRICED-LABEL: func.func @summed
// PRICED:         mesh.all_gather %arg0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
func.func @summed(%x: tensor<2x8xbf16>, %w: tensor<8x5xbf16>) -> tensor<8x5xbf16> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xbf16> -> tensor<8x8xbf16>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x8xbf16>, tensor<8x5xbf16>) -> tensor<8x5xbf16>
  return %1 : tensor<8x5xbf16>
}

// What is gathered is contracted: a piece of each shard, and what of the other operand goes with it.
// CHECK-LABEL: func.func @contracted
// CHECK:         %[[W:.*]] = stablehlo.slice %arg1 [0:5, 0:1]
// CHECK:         mesh.all_gather %[[W]] on @m mesh_axes = [1, 0] gather_axis = 1 : tensor<5x1xf32> -> tensor<5x8xf32>
// CHECK:         %[[R:.*]] = stablehlo.reshape %arg0 : (tensor<3x24xf32>) -> tensor<3x8x3x1xf32>
// CHECK:         stablehlo.slice %[[R]] [0:3, 0:8, 0:1, 0:1]
// CHECK:         stablehlo.dot_general {{.*}} : (tensor<3x8xf32>, tensor<5x8xf32>) -> tensor<3x5xf32>
func.func @contracted(%x: tensor<3x24xf32>, %w: tensor<5x3xf32>) -> tensor<3x5xf32> {
  %0 = mesh.all_gather %w on @m mesh_axes = [1, 0] gather_axis = 1 : tensor<5x3xf32> -> tensor<5x24xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [1] : (tensor<3x24xf32>, tensor<5x24xf32>) -> tensor<3x5xf32>
  return %1 : tensor<3x5xf32>
}

// Gradients of weights contract what was gathered, and have what is divided as a free dimension: their parts are joined.
// CHECK-LABEL: func.func @gradient
// CHECK-COUNT-4: mesh.all_gather
// CHECK:         stablehlo.add
// CHECK:         stablehlo.concatenate {{.*}}, dim = 0 : (tensor<1x5xf32>, tensor<1x5xf32>, tensor<1x5xf32>, tensor<1x5xf32>) -> tensor<4x5xf32>
func.func @gradient(%x: tensor<2x4xf32>, %w: tensor<4x5xf32>) -> (tensor<8x5xf32>, tensor<4x5xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x5xf32>) -> tensor<8x5xf32>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  return %1, %2 : tensor<8x5xf32>, tensor<4x5xf32>
}

// Of a product that is divided within shards, the parts of another one's free dimension stand apart.
// CHECK-LABEL: func.func @interleaved
// CHECK:         stablehlo.concatenate {{.*}}, dim = 1 : (tensor<4x1x1x5xf32>, tensor<4x1x1x5xf32>) -> tensor<4x2x1x5xf32>
func.func @interleaved(%w: tensor<2xf32>, %x: tensor<8xf32>, %y: tensor<5xf32>) -> (tensor<f32>, tensor<8x5xf32>) {
  %0 = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [0] x [0] : (tensor<8xf32>, tensor<8xf32>) -> tensor<f32>
  %2 = stablehlo.dot_general %0, %y, contracting_dims = [] x [] : (tensor<8xf32>, tensor<5xf32>) -> tensor<8x5xf32>
  return %1, %2 : tensor<f32>, tensor<8x5xf32>
}

// Tokens of experts arrive in pieces of their width; the experts' products are batched.
// CHECK-LABEL: func.func @experts
// CHECK-COUNT-3: mesh.all_to_all {{.*}} : tensor<4x2x2xf32> -> tensor<1x8x2xf32>
// CHECK:         stablehlo.dot_general {{.*}} batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x8x2xf32>, tensor<1x2x5xf32>) -> tensor<1x8x5xf32>
func.func @experts(%x: tensor<4x2x6xf32>, %w: tensor<1x6x5xf32>) -> tensor<1x8x5xf32> {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<4x2x6xf32> -> tensor<1x8x6xf32>
  %1 = stablehlo.dot_general %0, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x8x6xf32>, tensor<1x6x5xf32>) -> tensor<1x8x5xf32>
  return %1 : tensor<1x8x5xf32>
}

// A sum over four devices: three shifts one way and three the other way. The rows are those of the block that the sum is of.
// SMALL-LABEL: func.func @scattered
// SMALL:         mesh.reduce_scatter
// PRICED-LABEL: func.func @scattered
// PRICED:         mesh.reduce_scatter
// CHECK-LABEL: func.func @scattered
// CHECK:         %[[OWN:.*]] = stablehlo.reshape
// CHECK:         %[[ROWS:.*]] = stablehlo.dynamic_slice %arg0, {{.*}} sizes = [2, 3]
// CHECK:         %[[HALF:.*]] = stablehlo.slice %arg1 [0:3, 0:3]
// CHECK:         %[[P:.*]] = stablehlo.dot_general %[[ROWS]], %[[HALF]]
// CHECK:         mesh.shift %[[P]] on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate
// CHECK-COUNT-2: offset = 1 rotate
// CHECK-COUNT-3: offset = -1 rotate
// CHECK:         stablehlo.concatenate {{.*}}, dim = 1 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
// CHECK-NOT:     mesh.reduce_scatter
func.func @scattered(%x: tensor<8x3xf32>, %w: tensor<3x6xf32>) -> tensor<2x6xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x3xf32>, tensor<3x6xf32>) -> tensor<8x6xf32>
  %1 = mesh.reduce_scatter %0 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x6xf32> -> tensor<2x6xf32>
  return %1 : tensor<2x6xf32>
}

// The gradient of what two products read is the sum of two.
// CHECK-LABEL: func.func @both
// CHECK-NOT:     mesh.reduce_scatter
// CHECK:         mesh.shift
func.func @both(%x: tensor<2x3xbf16>, %y: tensor<2x3xbf16>, %w: tensor<4x3x8xbf16>) -> tensor<4x2x4xbf16> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [1] : (tensor<4x3x8xbf16>, tensor<2x3xbf16>) -> tensor<4x8x2xbf16>
  %1 = stablehlo.dot_general %w, %y, contracting_dims = [1] x [1] : (tensor<4x3x8xbf16>, tensor<2x3xbf16>) -> tensor<4x8x2xbf16>
  %2 = stablehlo.add %0, %1 : tensor<4x8x2xbf16>
  %3 = mesh.reduce_scatter %2 on @m mesh_axes = [0] scatter_axis = 1 : tensor<4x8x2xbf16> -> tensor<4x4x2xbf16>
  %4 = stablehlo.transpose %3, dims = [0, 2, 1] : (tensor<4x4x2xbf16>) -> tensor<4x2x4xbf16>
  return %4 : tensor<4x2x4xbf16>
}

// What is no product is computed whole, and parts of it are added up: halves of what else divides evenly, or all of them one way.
// CHECK-LABEL: func.func @whole
// CHECK:         %[[X:.*]] = stablehlo.tanh %arg0
// CHECK:         stablehlo.dynamic_slice %[[X]], {{.*}} sizes = [3, 1]
// CHECK-COUNT-3: mesh.shift {{.*}} offset = 1 rotate : tensor<3x1xf32> -> tensor<3x1xf32>
// CHECK:         stablehlo.dynamic_slice %arg1, {{.*}} sizes = [3, 1]
// CHECK:         mesh.shift {{.*}} offset = 1 rotate : tensor<3x1xf32> -> tensor<3x1xf32>
// CHECK:         stablehlo.dynamic_slice %arg2, {{.*}} sizes = [1, 4]
// CHECK:         stablehlo.slice {{.*}} [0:1, 0:2]
// CHECK-COUNT-3: mesh.shift {{.*}} offset = 1 rotate : tensor<1x2xf32> -> tensor<1x2xf32>
// CHECK-COUNT-3: mesh.shift {{.*}} offset = -1 rotate : tensor<1x2xf32> -> tensor<1x2xf32>
// CHECK-NOT:     mesh.reduce_scatter
func.func @whole(%x: tensor<3x4xf32>, %y: tensor<3x2xf32>, %z: tensor<4x4xf32>) -> (tensor<3x1xf32>, tensor<3x1xf32>, tensor<1x4xf32>) {
  %0 = stablehlo.tanh %x : tensor<3x4xf32>
  %1 = mesh.reduce_scatter %0 on @m mesh_axes = [1] scatter_axis = 1 : tensor<3x4xf32> -> tensor<3x1xf32>
  %2 = mesh.reduce_scatter %y on @m mesh_axes = [0] scatter_axis = 1 : tensor<3x2xf32> -> tensor<3x1xf32>
  %3 = mesh.reduce_scatter %z on @m mesh_axes = [1] scatter_axis = 0 : tensor<4x4xf32> -> tensor<1x4xf32>
  return %1, %2, %3 : tensor<3x1xf32>, tensor<3x1xf32>, tensor<1x4xf32>
}

// The sum that all devices get is gathered once it has travelled, along the first dimension that divides evenly.
// CHECK-LABEL: func.func @everywhere
// CHECK-NOT:     mesh.all_reduce
// CHECK:         mesh.shift {{.*}} : tensor<3x2x2xf32> -> tensor<3x2x2xf32>
// CHECK:         %[[SUM:.*]] = stablehlo.concatenate {{.*}}, dim = 2 : (tensor<3x2x2xf32>, tensor<3x2x2xf32>) -> tensor<3x2x4xf32>
// CHECK:         mesh.all_gather %[[SUM]] on @m mesh_axes = [1] gather_axis = 1 : tensor<3x2x4xf32> -> tensor<3x8x4xf32>
func.func @everywhere(%x: tensor<3x8x5xf32>, %w: tensor<5x4xf32>) -> tensor<3x8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<3x8x5xf32>, tensor<5x4xf32>) -> tensor<3x8x4xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] : tensor<3x8x4xf32> -> tensor<3x8x4xf32>
  return %1 : tensor<3x8x4xf32>
}

// An all-reduce of what is no product, along two axes, or where nothing divides evenly.
// CHECK-LABEL: func.func @reduced
// CHECK-COUNT-3: mesh.all_reduce
// CHECK:         return
func.func @reduced(%x: tensor<8x4xf32>, %y: tensor<3x5xf32>) -> (tensor<8x4xf32>, tensor<8x8xf32>, tensor<3x3xf32>) {
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<8x4xf32> -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %2 = mesh.all_reduce %1 on @m mesh_axes = [0, 1] : tensor<8x8xf32> -> tensor<8x8xf32>
  %3 = stablehlo.dot_general %y, %y, contracting_dims = [1] x [1] : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x3xf32>
  %4 = mesh.all_reduce %3 on @m mesh_axes = [1] : tensor<3x3xf32> -> tensor<3x3xf32>
  return %0, %2, %4 : tensor<8x4xf32>, tensor<8x8xf32>, tensor<3x3xf32>
}

// Somebody else reads what is gathered, nothing divides evenly, or what is reduced is not a sum along one axis.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-2: mesh.all_gather
// CHECK-NOT:     mesh.all_gather
// CHECK-COUNT-2: mesh.reduce_scatter
// CHECK:         return
func.func @kept(%x: tensor<2x4xf32>, %w: tensor<4x6xf32>, %y: tensor<3x5xf32>, %z: tensor<5x4xf32>) -> (tensor<8x6xf32>, tensor<8x4xf32>, tensor<12x4xf32>, tensor<2x6xf32>, tensor<2x6xf32>, tensor<1x6xf32>) {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %2 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<3x5xf32> -> tensor<12x5xf32>
  %3 = stablehlo.dot_general %2, %z, contracting_dims = [1] x [0] : (tensor<12x5xf32>, tensor<5x4xf32>) -> tensor<12x4xf32>
  %4 = mesh.reduce_scatter %1 on @m mesh_axes = [1] scatter_axis = 0 : tensor<8x6xf32> -> tensor<2x6xf32>
  %5 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %6 = mesh.reduce_scatter %5 on @m mesh_axes = [1] reduction = max scatter_axis = 0 : tensor<8x6xf32> -> tensor<2x6xf32>
  %7 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %8 = mesh.reduce_scatter %7 on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<8x6xf32> -> tensor<1x6xf32>
  return %1, %0, %3, %4, %6, %8 : tensor<8x6xf32>, tensor<8x4xf32>, tensor<12x4xf32>, tensor<2x6xf32>, tensor<2x6xf32>, tensor<1x6xf32>
}
