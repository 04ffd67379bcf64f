// RUN: mesh-opt %s --hoist-collectives | filecheck %s
// RUN: mesh-opt %s --hoist-collectives='growth=8' | filecheck %s --check-prefix=SMALL

mesh.mesh @m(shape = 2x4)

// The gathered weight is carried unchanged; the sum varies from iteration to iteration.
// SMALL-LABEL: func.func @loop
// SMALL:         stablehlo.while
// SMALL:         mesh.all_gather
// CHECK-LABEL: func.func @loop
// CHECK:         stablehlo.convert %arg0
// CHECK-NEXT:    %[[G:.*]] = mesh.all_gather
// CHECK:         stablehlo.while
// CHECK-NOT:     mesh.all_gather
// CHECK:         stablehlo.add %{{.*}}, %[[G]]
// CHECK:         mesh.all_reduce
func.func @loop(%w: tensor<2xbf16>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %a = %w, %b = %x) : tensor<i32>, tensor<2xbf16>, tensor<8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.convert %a : (tensor<2xbf16>) -> tensor<2xf32>
      %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
      %4 = stablehlo.add %b, %3 : tensor<8xf32>
      %5 = mesh.all_reduce %4 on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
      stablehlo.return %1, %a, %5 : tensor<i32>, tensor<2xbf16>, tensor<8xf32>
    }
  return %0#2 : tensor<8xf32>
}

// Out of two loops at once.
// SMALL-LABEL: func.func @nested
// SMALL:         mesh.all_reduce
// SMALL:         stablehlo.while
// CHECK-LABEL: func.func @nested
// CHECK:         mesh.all_reduce %arg0
// CHECK:         stablehlo.while
// CHECK:         stablehlo.while
// CHECK-NOT:     mesh.all_reduce
// CHECK:         return
func.func @nested(%w: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %a = %w, %b = %x) : tensor<i32>, tensor<2xf32>, tensor<2xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2:3 = stablehlo.while(%j = %zero, %c = %a, %d = %b) : tensor<i32>, tensor<2xf32>, tensor<2xf32>
        cond {
          %3 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %3 : tensor<i1>
        } do {
          %3 = stablehlo.add %j, %one : tensor<i32>
          %4 = mesh.all_reduce %c on @m mesh_axes = [0] : tensor<2xf32> -> tensor<2xf32>
          %5 = stablehlo.subtract %d, %4 : tensor<2xf32>
          stablehlo.return %3, %c, %5 : tensor<i32>, tensor<2xf32>, tensor<2xf32>
        }
      stablehlo.return %1, %a, %2#2 : tensor<i32>, tensor<2xf32>, tensor<2xf32>
    }
  return %0#2 : tensor<2xf32>
}
