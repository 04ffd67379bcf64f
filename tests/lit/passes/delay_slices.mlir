// RUN: mesh-opt %s --delay-slices | filecheck %s

mesh.mesh @mesh(shape = 2)

// A loop reads a layer at a time: each device slices the layer.
// CHECK-LABEL: func.func @layers
// CHECK-NOT:     mesh.all_slice
// CHECK:         stablehlo.while({{.*}} = %arg0
// CHECK:           %[[LAYER:.*]] = stablehlo.dynamic_slice {{.*}} sizes = [1, 4]
// CHECK:           %[[PART:.*]] = mesh.all_slice %[[LAYER]] on @mesh mesh_axes = [0] slice_axis = 1 : tensor<1x4xf32> -> tensor<1x2xf32>
// CHECK:           stablehlo.add {{.*}}, %[[PART]]
func.func @layers(%w: tensor<8x4xf32>, %x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = mesh.all_slice %w on @mesh mesh_axes = [0] slice_axis = 1 : tensor<8x4xf32> -> tensor<8x2xf32>
  %1:3 = stablehlo.while(%i = %zero, %a = %0, %b = %x) : tensor<i32>, tensor<8x2xf32>, tensor<1x2xf32>
    cond {
      %n = stablehlo.constant dense<8> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %i, %one : tensor<i32>
      %3 = stablehlo.dynamic_slice %a, %i, %zero, sizes = [1, 2] : (tensor<8x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
      %4 = stablehlo.add %b, %3 : tensor<1x2xf32>
      stablehlo.return %2, %a, %4 : tensor<i32>, tensor<8x2xf32>, tensor<1x2xf32>
    }
  return %1#2 : tensor<1x2xf32>
}

// Compilers fuse a slice of all layers outside of loops.
// CHECK-LABEL: func.func @one_layer
// CHECK:         mesh.all_slice %arg0
// CHECK:         stablehlo.slice
func.func @one_layer(%w: tensor<8x4xf32>) -> tensor<1x2xf32> {
  %0 = mesh.all_slice %w on @mesh mesh_axes = [0] slice_axis = 1 : tensor<8x4xf32> -> tensor<8x2xf32>
  %1 = stablehlo.slice %0 [0:1, 0:2] : (tensor<8x2xf32>) -> tensor<1x2xf32>
  return %1 : tensor<1x2xf32>
}
