// RUN: mesh-opt %s --peel-last-microbatch | filecheck %s
// RUN: mesh-opt %s --peel-last-microbatch='machine=v5e' | filecheck %s --check-prefix=WAITS

mesh.mesh @m(shape = 2x4)

// Two gradients: the first is reduced before the second is computed. What else the loop carries comes out as before. A device that
// waits for its reductions would gain nothing.
// CHECK-LABEL: func.func @unrolled
// CHECK:         %[[W:.*]]:4 = stablehlo.while
// CHECK:           %[[LIMIT:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:      stablehlo.compare LT, %{{.*}}, %[[LIMIT]]
// CHECK:         } do {
// CHECK-NOT:       mesh.all_reduce
// CHECK:           stablehlo.return
// CHECK-NEXT:    }
// CHECK:         %[[HELD:.*]]:3 = stablehlo.optimization_barrier %[[W]]#1, %[[W]]#2, %[[W]]#3
// CHECK:         %[[G:.*]] = stablehlo.multiply
// CHECK:         %[[A:.*]] = stablehlo.add %[[HELD]]#0, %[[G]]
// CHECK:         %[[H:.*]] = stablehlo.tanh
// CHECK:         %[[B:.*]] = stablehlo.subtract %[[HELD]]#1, %[[H]]
// CHECK:         %[[LOSS:.*]] = stablehlo.maximum %[[HELD]]#2
// CHECK:         %[[ALL:.*]] = mesh.all_reduce %[[A]] on @m mesh_axes = [0]
// CHECK:         %[[HALF:.*]] = stablehlo.negate %[[B]]
// CHECK:         %[[PART:.*]] = mesh.reduce_scatter %[[HALF]] on @m mesh_axes = [0]
// CHECK:         return %[[ALL]], %[[PART]], %[[LOSS]]
// WAITS-LABEL: func.func @unrolled
// WAITS:         stablehlo.while
// WAITS:         %{{.*}} = stablehlo.constant dense<3>
// WAITS:         } do {
// WAITS:           stablehlo.tanh
// WAITS-NOT:     stablehlo.tanh
// WAITS:         return
func.func @unrolled(%x: tensor<3x4xf32>) -> (tensor<4xf32>, tensor<2xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:4 = stablehlo.while(%i = %zero, %a = %zeros, %b = %zeros, %l = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dynamic_slice %x, %i, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
      %3 = stablehlo.multiply %2, %2 : tensor<4xf32>
      %4 = stablehlo.add %a, %3 : tensor<4xf32>
      %5 = stablehlo.tanh %3 : tensor<4xf32>
      %6 = stablehlo.subtract %b, %5 : tensor<4xf32>
      %7 = stablehlo.maximum %l, %5 : tensor<4xf32>
      %8 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %8, %4, %6, %7 : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
    }
  %9 = mesh.all_reduce %0#1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %10 = stablehlo.negate %0#2 : tensor<4xf32>
  %11 = mesh.reduce_scatter %10 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
  return %9, %11, %0#3 : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
}

// Stacks of layers, from the last to the first: the last trip's inner loop adds each row to its row of the sum, and reduces it. The
// all-reduced stack is the sum itself, row by row written over; shards have a stack of their own. The stack of which rows are
// scattered among devices, and the one of which not all rows are written, are reduced behind the inner loop.
// CHECK-LABEL: func.func @stacked
// CHECK:         %[[SUMS:.*]]:5 = stablehlo.while
// CHECK:         %[[HELD:.*]]:4 = stablehlo.optimization_barrier %[[SUMS]]#1,
// CHECK:         %[[SHARDS:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4x2xf32>
// CHECK:         %[[LAST:.*]]:5 = stablehlo.while(%{{.*}} = %{{.*}}, %[[ALL:.*]] = %[[HELD]]#0, %[[PART:.*]] = %[[SHARDS]], %{{.*}} = %{{.*}}, %{{.*}} = %{{.*}})
// CHECK:           %[[ROW:.*]] = stablehlo.dynamic_slice %[[ALL]], %{{.*}}, %{{.*}}, sizes = [1, 4]
// CHECK-NEXT:      %[[ADDED:.*]] = stablehlo.add %[[ROW]],
// CHECK-NEXT:      %[[SCALE:.*]] = stablehlo.constant dense<5.000000e-01> : tensor<1x4xf32>
// CHECK-NEXT:      %[[SCALED:.*]] = stablehlo.multiply %[[ADDED]], %[[SCALE]]
// CHECK-NEXT:      %[[REDUCED:.*]] = mesh.all_reduce %[[SCALED]] on @m mesh_axes = [0]
// CHECK:           stablehlo.dynamic_update_slice %[[ALL]], %[[REDUCED]]
// CHECK:           %[[WIDE:.*]] = stablehlo.convert %{{.*}} -> tensor<1x4xf32>
// CHECK:           %[[OLD:.*]] = stablehlo.dynamic_slice %[[HELD]]#1
// CHECK-NEXT:      %[[NEW:.*]] = stablehlo.add %[[WIDE]], %[[OLD]]
// CHECK-NEXT:      %[[SHARD:.*]] = mesh.reduce_scatter %[[NEW]] on @m mesh_axes = [0] scatter_axis = 1
// CHECK:           stablehlo.dynamic_update_slice %[[PART]], %[[SHARD]]
// CHECK:           stablehlo.return
// CHECK-NEXT:    }
// CHECK:         mesh.reduce_scatter {{.*}} scatter_axis = 0 : tensor<4x4xf32> -> tensor<2x4xf32>
// CHECK:         mesh.all_reduce {{.*}} : tensor<5x4xf32> -> tensor<5x4xf32>
// CHECK:         return %[[LAST]]#1, %[[LAST]]#2,
func.func @stacked(%x: tensor<2x4xf32>) -> (tensor<4x4xf32>, tensor<4x2xf32>, tensor<2x4xf32>, tensor<5x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %narrow = stablehlo.constant dense<0.0> : tensor<4x4xbf16>
  %more = stablehlo.constant dense<0.0> : tensor<5x4xf32>
  %half = stablehlo.constant dense<0.5> : tensor<4x4xf32>
  %0:5 = stablehlo.while(%i = %zero, %a = %zeros, %b = %zeros, %c = %zeros, %d = %more) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<5x4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dynamic_slice %x, %i, %zero, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %2:5 = stablehlo.while(%k = %zero, %p = %zeros, %q = %narrow, %r = %zeros, %s = %more) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xbf16>, tensor<4x4xf32>, tensor<5x4xf32>
        cond {
          %3 = stablehlo.compare LT, %k, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %3 : tensor<i1>
        } do {
          %layer = stablehlo.subtract %three, %k : tensor<i32>
          %3 = stablehlo.convert %layer : (tensor<i32>) -> tensor<f32>
          %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<1x4xf32>
          %5 = stablehlo.multiply %1, %4 : tensor<1x4xf32>
          %6 = stablehlo.dynamic_update_slice %p, %5, %layer, %zero : (tensor<4x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
          %7 = stablehlo.convert %5 : (tensor<1x4xf32>) -> tensor<1x4xbf16>
          %8 = stablehlo.dynamic_update_slice %q, %7, %layer, %zero : (tensor<4x4xbf16>, tensor<1x4xbf16>, tensor<i32>, tensor<i32>) -> tensor<4x4xbf16>
          %9 = stablehlo.dynamic_update_slice %r, %5, %layer, %zero : (tensor<4x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
          %10 = stablehlo.dynamic_update_slice %s, %5, %layer, %zero : (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>
          %11 = stablehlo.add %k, %one : tensor<i32>
          stablehlo.return %11, %6, %8, %9, %10 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xbf16>, tensor<4x4xf32>, tensor<5x4xf32>
        }
      %3 = stablehlo.convert %2#2 : (tensor<4x4xbf16>) -> tensor<4x4xf32>
      %4 = stablehlo.add %a, %2#1 : tensor<4x4xf32>
      %5 = stablehlo.add %3, %b : tensor<4x4xf32>
      %6 = stablehlo.add %c, %2#3 : tensor<4x4xf32>
      %7 = stablehlo.add %d, %2#4 : tensor<5x4xf32>
      %8 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %8, %4, %5, %6, %7 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<5x4xf32>
    }
  %9 = stablehlo.multiply %0#1, %half : tensor<4x4xf32>
  %10 = mesh.all_reduce %9 on @m mesh_axes = [0] : tensor<4x4xf32> -> tensor<4x4xf32>
  %11 = mesh.reduce_scatter %0#2 on @m mesh_axes = [0] scatter_axis = 1 : tensor<4x4xf32> -> tensor<4x2xf32>
  %12 = mesh.reduce_scatter %0#3 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x4xf32> -> tensor<2x4xf32>
  %13 = mesh.all_reduce %0#4 on @m mesh_axes = [0] : tensor<5x4xf32> -> tensor<5x4xf32>
  return %10, %11, %12, %13 : tensor<4x4xf32>, tensor<4x2xf32>, tensor<2x4xf32>, tensor<5x4xf32>
}

// A loop of one trip has none to overlap with; of others the text must say how often they run, and what is summed up must not be
// read meanwhile.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-3: stablehlo.while
// CHECK-NOT:     stablehlo.while
// CHECK-COUNT-3: mesh.all_reduce
// CHECK-NEXT:    return
func.func @kept(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %first = stablehlo.slice %x [0:1] : (tensor<4xf32>) -> tensor<1xf32>
  %number = stablehlo.reshape %first : (tensor<1xf32>) -> tensor<f32>
  %often = stablehlo.convert %number : (tensor<f32>) -> tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %a, %x : tensor<4xf32>
      %2 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<4xf32>
    }
  %3:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %often : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %a, %x : tensor<4xf32>
      %2 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<4xf32>
    }
  %4:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.tanh %a : tensor<4xf32>
      %2 = stablehlo.add %a, %1 : tensor<4xf32>
      %5 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %5, %2 : tensor<i32>, tensor<4xf32>
    }
  %6 = mesh.all_reduce %0#1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %7 = mesh.all_reduce %3#1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  %8 = mesh.all_reduce %4#1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %6, %7, %8 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
