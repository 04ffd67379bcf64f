// XLA:TPU makes no all-reduces of reduce-scatters along a first dimension of pieces, or into pieces of whole tiles. Of those over all
// devices of a slice it makes all-reduces, and of all-gathers too where all axes are rings: two collectives amount to one.
// RUN: mesh-opt %s --lower-collectives | filecheck %s --check-prefix=PLAIN
// RUN: mesh-opt %s --lower-collectives=machine=v6e | filecheck %s --check-prefixes=CHECK,TWO-SCATTER,ONE-GATHER
// RUN: mesh-opt %s --lower-collectives=machine=v5p | filecheck %s --check-prefixes=CHECK,TWO
// RUN: mesh-opt %s --lower-collectives=machine=v5p:4x4x4 | filecheck %s --check-prefixes=CHECK,TWO

mesh.mesh @m(shape = 16x4)

// PLAIN-COUNT-5: "stablehlo.reduce_scatter"(%arg0)

// CHECK-LABEL: @rows
// CHECK: %[[PIECES:.*]] = stablehlo.reshape %arg0 : (tensor<2048x512xbf16>) -> tensor<4x512x512xbf16>
// CHECK: "stablehlo.reduce_scatter"(%[[PIECES]]) <{{.*}}scatter_dimension = 0
// CHECK: (tensor<4x512x512xbf16>) -> tensor<1x512x512xbf16>
func.func @rows(%x: tensor<2048x512xbf16>) -> tensor<512x512xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 0 : tensor<2048x512xbf16> -> tensor<512x512xbf16>
  return %0 : tensor<512x512xbf16>
}

// Parts of tiles are cut after a barrier: a product would read its operand in such parts, and what it computes of that on the way would be held.
// CHECK-LABEL: @parts_of_tiles
// CHECK: %[[WHOLE:.*]] = stablehlo.optimization_barrier %arg0
// CHECK: %[[PIECES:.*]] = stablehlo.reshape %[[WHOLE]] : (tensor<2112x512xbf16>) -> tensor<16x132x512xbf16>
// CHECK: "stablehlo.reduce_scatter"(%[[PIECES]]) <{{.*}}scatter_dimension = 0
// CHECK: (tensor<16x132x512xbf16>) -> tensor<1x132x512xbf16>
func.func @parts_of_tiles(%x: tensor<2112x512xbf16>) -> tensor<132x512xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<2112x512xbf16> -> tensor<132x512xbf16>
  return %0 : tensor<132x512xbf16>
}

// CHECK-LABEL: @even_tiles
// CHECK: "stablehlo.reduce_scatter"(%arg0) <{{.*}}scatter_dimension = 1
func.func @even_tiles(%x: tensor<2048x1024xbf16>) -> tensor<2048x256xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<2048x1024xbf16> -> tensor<2048x256xbf16>
  return %0 : tensor<2048x256xbf16>
}

// CHECK-LABEL: @heads
// CHECK: stablehlo.reshape %arg0 : (tensor<3x16x128x64xbf16>) -> tensor<3x4x4x128x64xbf16>
// CHECK: stablehlo.transpose %{{.*}}, dims = [1, 0, 2, 3, 4]
// CHECK: %[[PIECES:.*]] = stablehlo.reshape %{{.*}} -> tensor<4x1536x64xbf16>
// CHECK: "stablehlo.reduce_scatter"(%[[PIECES]]) <{{.*}}scatter_dimension = 0
// CHECK: (tensor<1x1536x64xbf16>) -> tensor<3x4x128x64xbf16>
func.func @heads(%x: tensor<3x16x128x64xbf16>) -> tensor<3x4x128x64xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : tensor<3x16x128x64xbf16> -> tensor<3x4x128x64xbf16>
  return %0 : tensor<3x4x128x64xbf16>
}

// CHECK-LABEL: @all_devices
// TWO-SCATTER: stablehlo.reduce_scatter{{.*}}tensor<8x8xi64>
// TWO-SCATTER: stablehlo.reduce_scatter{{.*}}tensor<8x8xi64>
// ONE-GATHER: stablehlo.all_gather{{.*}}tensor<1x64xi64>
// TWO: stablehlo.reduce_scatter{{.*}}tensor<4x16xi64>
// TWO: stablehlo.reduce_scatter{{.*}}tensor<16x4xi64>
// TWO: stablehlo.all_gather{{.*}}tensor<16x4xi64>{{.*}} -> tensor<64x1024xbf16>
// TWO: stablehlo.all_gather{{.*}}tensor<4x16xi64>{{.*}} -> tensor<1024x1024xbf16>
func.func @all_devices(%x: tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16> {
  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0, 1] scatter_axis = 0 : tensor<1024x1024xbf16> -> tensor<16x1024xbf16>
  %1 = mesh.all_gather %0 on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<16x1024xbf16> -> tensor<1024x1024xbf16>
  return %1 : tensor<1024x1024xbf16>
}

// A second collective would take longer than what it saves.
// CHECK-LABEL: @small
// CHECK: stablehlo.all_gather{{.*}}tensor<1x64xi64>
func.func @small(%x: tensor<64xbf16>) -> tensor<4096xbf16> {
  %0 = mesh.all_gather %x on @m mesh_axes = [0, 1] gather_axis = 0 : tensor<64xbf16> -> tensor<4096xbf16>
  return %0 : tensor<4096xbf16>
}

// What a reshape divides is gathered before it: no dimension follows the gathered one then, which XLA:TPU would put outermost in memory.
// CHECK-LABEL: @divided
// CHECK: %[[WHOLE:.*]] = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 1
// CHECK: (tensor<64x256xbf16>) -> tensor<64x1024xbf16>
// CHECK: stablehlo.reshape %[[WHOLE]] : (tensor<64x1024xbf16>) -> tensor<64x8x128xbf16>
func.func @divided(%x: tensor<64x256xbf16>) -> tensor<64x8x128xbf16> {
  %0 = stablehlo.reshape %x : (tensor<64x256xbf16>) -> tensor<64x2x128xbf16>
  %1 = mesh.all_gather %0 on @m mesh_axes = [1] gather_axis = 1 : tensor<64x2x128xbf16> -> tensor<64x8x128xbf16>
  return %1 : tensor<64x8x128xbf16>
}

// Of a reshape along other dimensions, and of the inner part of what is divided, the whole would be in another order.
// CHECK-LABEL: @kept
// CHECK: (tensor<64x2x128xbf16>) -> tensor<64x2x512xbf16>
// CHECK: (tensor<32x256xbf16>) -> tensor<32x1024xbf16>
func.func @kept(%x: tensor<64x256xbf16>, %y: tensor<32x2x128xbf16>) -> (tensor<64x2x512xbf16>, tensor<32x1024xbf16>) {
  %0 = stablehlo.reshape %x : (tensor<64x256xbf16>) -> tensor<64x2x128xbf16>
  %1 = mesh.all_gather %0 on @m mesh_axes = [1] gather_axis = 2 : tensor<64x2x128xbf16> -> tensor<64x2x512xbf16>
  %2 = stablehlo.reshape %y : (tensor<32x2x128xbf16>) -> tensor<32x256xbf16>
  %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 1 : tensor<32x256xbf16> -> tensor<32x1024xbf16>
  return %1, %3 : tensor<64x2x512xbf16>, tensor<32x1024xbf16>
}

// What is received is joined along another dimension by a concatenation, if the pieces come from a first dimension, or are joined along
// the last one; pieces of a dimension between are left to XLA:TPU.
// PLAIN-LABEL: @exchanged
// PLAIN-COUNT-3: "stablehlo.all_to_all"
// PLAIN-NOT: stablehlo.concatenate
// CHECK-LABEL: @exchanged
// CHECK: %[[ROWS:.*]] = "stablehlo.all_to_all"(%arg0) <{{.*}}concat_dimension = 0
// CHECK: %[[FIRST:.*]] = stablehlo.slice %[[ROWS]] [0:2, 0:16, 0:128]
// CHECK: %[[LAST:.*]] = stablehlo.slice %[[ROWS]] [6:8, 0:16, 0:128]
// CHECK: stablehlo.concatenate %[[FIRST]], {{.*}}, %[[LAST]], dim = 2 : {{.*}} -> tensor<2x16x512xf32>
// CHECK: "stablehlo.all_to_all"{{.*}}concat_dimension = 0
// CHECK: stablehlo.concatenate {{.*}}, dim = 2 : {{.*}} -> tensor<8x4x512xf32>
// CHECK: "stablehlo.all_to_all"(%arg1) <{{.*}}concat_dimension = 2{{.*}}split_dimension = 1
// CHECK-NOT: stablehlo.concatenate
// CHECK: return
func.func @exchanged(%x: tensor<8x16x128xf32>, %y: tensor<8x16x4x128xf32>) -> (tensor<2x16x512xf32>, tensor<8x4x512xf32>, tensor<8x4x16x128xf32>) {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 0 concat_axis = 2 : tensor<8x16x128xf32> -> tensor<2x16x512xf32>
  %1 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 1 concat_axis = 2 : tensor<8x16x128xf32> -> tensor<8x4x512xf32>
  %2 = mesh.all_to_all %y on @m mesh_axes = [1] split_axis = 1 concat_axis = 2 : tensor<8x16x4x128xf32> -> tensor<8x4x16x128xf32>
  return %0, %1, %2 : tensor<2x16x512xf32>, tensor<8x4x512xf32>, tensor<8x4x16x128xf32>
}

// Of more pieces than 16 the program would grow with devices.
// CHECK-LABEL: @many
// CHECK: "stablehlo.all_to_all"(%arg0) <{{.*}}concat_dimension = 2
// CHECK-NOT: stablehlo.concatenate
// CHECK: return
func.func @many(%x: tensor<64x16x128xf32>) -> tensor<1x16x8192xf32> {
  %0 = mesh.all_to_all %x on @m mesh_axes = [0, 1] split_axis = 0 concat_axis = 2 : tensor<64x16x128xf32> -> tensor<1x16x8192xf32>
  return %0 : tensor<1x16x8192xf32>
}
