// RUN: mesh-opt %s --split-input-file --update-whole | filecheck %s
// RUN: mesh-opt %s --split-input-file --update-whole=least=1000 | filecheck %s --check-prefix=SMALL

mesh.mesh @m(shape = 2x4)

// The whole is computed of the gathered term; constants and broadcasts are made as large.
// CHECK-LABEL: func.func @main
// CHECK:         %[[ALL:.*]] = mesh.all_gather %arg1 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
// CHECK:         %[[STEP:.*]] = stablehlo.multiply %{{.*}}, %[[ALL]] : tensor<8x3xf32>
// CHECK:         %[[NEW:.*]] = stablehlo.subtract %arg0, %[[STEP]] : tensor<8x3xf32>
// CHECK-NOT:     mesh.
// CHECK:         return %[[NEW]]
// SMALL:         mesh.all_slice %arg0
func.func @main(
    %w: tensor<8x3xf32> {tf.aliasing_output = 0 : i32, meshbridge.global = tensor<8x3xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[], []]>},
    %g: tensor<2x3xf32>) -> tensor<8x3xf32> {
  %rate = stablehlo.constant dense<0.1> : tensor<f32>
  %rates = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
  %step = stablehlo.multiply %rates, %g : tensor<2x3xf32>
  %own = mesh.all_slice %w on @m mesh_axes = [1] slice_axis = 0 : tensor<8x3xf32> -> tensor<2x3xf32>
  %new = stablehlo.subtract %own, %step : tensor<2x3xf32>
  %all = mesh.all_gather %new on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
  return %all : tensor<8x3xf32>
}

// -----

// No more bytes than before: the term is what float32 is rounded to.
// CHECK-LABEL: func.func @main
// CHECK:         %[[NARROW:.*]] = stablehlo.convert %{{.*}} : (tensor<2xf32>) -> tensor<2xbf16>
// CHECK:         %[[ALL:.*]] = mesh.all_gather %[[NARROW]] on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
// CHECK:         stablehlo.subtract %arg0, %[[ALL]] : tensor<8xbf16>
mesh.mesh @m(shape = 2x4)
func.func @main(
    %w: tensor<8xbf16> {jax.buffer_donor = true, meshbridge.global = tensor<8xbf16>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[]]>},
    %g: tensor<2xf32>) -> tensor<8xbf16> {
  %tanh = stablehlo.tanh %g : tensor<2xf32>
  %step = stablehlo.convert %tanh : (tensor<2xf32>) -> tensor<2xbf16>
  %own = mesh.all_slice %w on @m mesh_axes = [1] slice_axis = 0 : tensor<8xbf16> -> tensor<2xbf16>
  %new = stablehlo.subtract %own, %step : tensor<2xbf16>
  %all = mesh.all_gather %new on @m mesh_axes = [1] gather_axis = 0 : tensor<2xbf16> -> tensor<8xbf16>
  return %all : tensor<8xbf16>
}

// -----

// Two terms of which devices have parts; nothing after the term; an argument that devices do not have whole; no argument's buffer.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-4: mesh.all_gather %{{.*}} : tensor<2xf32> -> tensor<8xf32>
// CHECK-NEXT:  return
mesh.mesh @m(shape = 2x4)
func.func @main(
    %w: tensor<8xf32> {tf.aliasing_output = 0 : i32, meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[]]>},
    %a: tensor<8xf32> {tf.aliasing_output = 1 : i32},
    %b: tensor<8xf32> {tf.aliasing_output = 2 : i32, meshbridge.global = tensor<32xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[1]]>},
    %g: tensor<2xf32>, %h: tensor<2xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %product = stablehlo.multiply %g, %h : tensor<2xf32>
  %0 = mesh.all_gather %product on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %1 = mesh.all_gather %g on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %other = mesh.all_slice %b on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %sum = stablehlo.add %other, %h : tensor<2xf32>
  %2 = mesh.all_gather %sum on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  %own = mesh.all_slice %w on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %fed = stablehlo.add %own, %g : tensor<2xf32>
  %3 = mesh.all_gather %fed on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
  return %0, %1, %2, %3 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
