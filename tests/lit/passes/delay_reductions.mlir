// RUN: mesh-opt %s --delay-reductions | filecheck %s
// RUN: mesh-opt %s --delay-reductions='growth=0' | filecheck %s --check-prefix=SMALL

mesh.mesh @m(shape = 2x4)

// Gradients are summed over iterations first, then over devices. The first starts from zero, the second does not.
// CHECK-LABEL: func.func @accumulated
// CHECK:         %[[W:.*]]:3 = stablehlo.while
// CHECK-NOT:     mesh.all_reduce
// CHECK:         stablehlo.return
// CHECK-NOT:     mesh.all_reduce
// CHECK:         stablehlo.return
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[B:.*]] = mesh.all_reduce %[[W]]#2 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    %[[S:.*]] = stablehlo.add %arg1, %[[B]]
// CHECK-NEXT:    %[[A:.*]] = mesh.all_reduce %[[W]]#1 on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
// CHECK-NEXT:    return %[[A]], %[[S]]
func.func @accumulated(%x: tensor<4xf32>, %start: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %half = stablehlo.constant dense<0.5> : tensor<4xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %a = %zeros, %b = %start) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = mesh.all_reduce %x on @m mesh_axes = [0, 1] : tensor<4xf32> -> tensor<4xf32>
      %3 = stablehlo.multiply %2, %half : tensor<4xf32>
      %4 = stablehlo.add %a, %3 : tensor<4xf32>
      %5 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
      %6 = stablehlo.subtract %b, %5 : tensor<4xf32>
      stablehlo.return %1, %4, %6 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    }
  return %0#1, %0#2 : tensor<4xf32>, tensor<4xf32>
}

// Pieces are as many times larger before they are scattered; shards are smaller before they are gathered.
// CHECK-LABEL: func.func @resized
// CHECK:         stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32>, tensor<2xf32>
// CHECK:         mesh.all_gather {{.*}} : tensor<2xf32> -> tensor<8xf32>
// CHECK-NEXT:    mesh.reduce_scatter {{.*}} : tensor<4xf32> -> tensor<2xf32>
// SMALL-LABEL: func.func @resized
// SMALL:         stablehlo.while({{.*}}) : tensor<i32>, tensor<2xf32>, tensor<2xf32>
// SMALL:         mesh.reduce_scatter
// SMALL:         stablehlo.return
// SMALL-NEXT:    }
// SMALL-NEXT:    mesh.all_gather
func.func @resized(%x: tensor<4xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %two = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2xf32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<8xf32>
  %0:3 = stablehlo.while(%i = %zero, %a = %two, %b = %lowest) : tensor<i32>, tensor<2xf32>, tensor<8xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
      %3 = stablehlo.add %2, %a : tensor<2xf32>
      %4 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
      %5 = stablehlo.maximum %b, %4 : tensor<8xf32>
      stablehlo.return %1, %3, %5 : tensor<i32>, tensor<2xf32>, tensor<8xf32>
    }
  return %0#1, %0#2 : tensor<2xf32>, tensor<8xf32>
}

// Out of both loops.
// CHECK-LABEL: func.func @nested
// CHECK-COUNT-2: stablehlo.while
// CHECK-NOT:     mesh.all_reduce
// CHECK:         stablehlo.return
// CHECK:         return
// CHECK:         mesh.all_reduce
func.func @nested(%x: tensor<4xf32>, %start: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %zero, %a = %start) : tensor<i32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2:2 = stablehlo.while(%j = %zero, %b = %zeros) : tensor<i32>, tensor<4xf32>
        cond {
          %3 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %3 : tensor<i1>
        } do {
          %3 = stablehlo.add %j, %one : tensor<i32>
          %4 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
          %5 = stablehlo.add %b, %4 : tensor<4xf32>
          stablehlo.return %3, %5 : tensor<i32>, tensor<4xf32>
        }
      %6 = stablehlo.add %a, %2#1 : tensor<4xf32>
      stablehlo.return %1, %6 : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}

// The sum so far is read, the sum is taken away from, or the loop runs once.
// CHECK-LABEL: func.func @kept
// CHECK:         stablehlo.while
// CHECK:           mesh.all_reduce
// CHECK:           mesh.all_reduce
// CHECK:         stablehlo.while
// CHECK:           mesh.all_reduce
// CHECK:         stablehlo.return
// CHECK-NEXT:    }
// CHECK-NEXT:    return
func.func @kept(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<2> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:4 = stablehlo.while(%i = %zero, %a = %zeros, %b = %zeros, %c = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
      %3 = stablehlo.add %a, %2 : tensor<4xf32>
      %4 = stablehlo.tanh %3 : tensor<4xf32>
      %5 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
      %6 = stablehlo.subtract %5, %b : tensor<4xf32>
      stablehlo.return %1, %3, %6, %4 : tensor<i32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
    }
  %7:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %8 = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    } do {
      %8 = stablehlo.add %i, %one : tensor<i32>
      %9 = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
      %10 = stablehlo.add %a, %9 : tensor<4xf32>
      stablehlo.return %8, %10 : tensor<i32>, tensor<4xf32>
    }
  return %0#1, %0#2, %0#3, %7#1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Rows of gradients are put on a stack, and an outer loop adds the stacks up: what is reduced is their sum.
// CHECK-LABEL: func.func @stacked
// CHECK:         stablehlo.while({{.*}}) : tensor<i32>, tensor<5x4x6xf32>
// CHECK:           stablehlo.while({{.*}}) : tensor<i32>, tensor<5x4x6xf32>
// CHECK-NOT:     mesh.reduce_scatter
// CHECK:         return
// CHECK:         mesh.reduce_scatter {{.*}} scatter_axis = 1 : tensor<5x4x6xf32> -> tensor<5x2x6xf32>
// CHECK-NEXT:    stablehlo.transpose {{.*}} dims = [0, 2, 1]
// SMALL-LABEL: func.func @stacked
// SMALL:         stablehlo.while({{.*}}) : tensor<i32>, tensor<5x6x2xf32>
func.func @stacked(%x: tensor<4x6xf32>) -> tensor<5x6x2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %rows = stablehlo.constant dense<5> : tensor<i32>
  %batches = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<5x6x2xf32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %zeros) : tensor<i32>, tensor<5x6x2xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %batches : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1:2 = stablehlo.while(%j = %zero, %stack = %zeros) : tensor<i32>, tensor<5x6x2xf32>
        cond {
          %4 = stablehlo.compare LT, %j, %rows : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %4 : tensor<i1>
        } do {
          %4 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x6xf32> -> tensor<2x6xf32>
          %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x6xf32>) -> tensor<6x2xf32>
          %6 = stablehlo.broadcast_in_dim %5, dims = [1, 2] : (tensor<6x2xf32>) -> tensor<1x6x2xf32>
          %7 = stablehlo.dynamic_update_slice %stack, %6, %j, %zero, %zero : (tensor<5x6x2xf32>, tensor<1x6x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x6x2xf32>
          %8 = stablehlo.add %j, %one : tensor<i32>
          stablehlo.return %8, %7 : tensor<i32>, tensor<5x6x2xf32>
        }
      %2 = stablehlo.add %sum, %1#1 : tensor<5x6x2xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2 : tensor<i32>, tensor<5x6x2xf32>
    }
  return %0#1 : tensor<5x6x2xf32>
}

// A stack that nothing adds up is communicated row by row.
// CHECK-LABEL: func.func @kept_rows
// CHECK:         stablehlo.while
// CHECK:           mesh.reduce_scatter
// CHECK:         stablehlo.return
func.func @kept_rows(%x: tensor<4x6xf32>) -> tensor<5x2x6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %rows = stablehlo.constant dense<5> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x2x6xf32>
  %0:2 = stablehlo.while(%j = %zero, %stack = %zeros) : tensor<i32>, tensor<5x2x6xf32>
    cond {
      %1 = stablehlo.compare LT, %j, %rows : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x6xf32> -> tensor<2x6xf32>
      %2 = stablehlo.reshape %1 : (tensor<2x6xf32>) -> tensor<1x2x6xf32>
      %3 = stablehlo.dynamic_update_slice %stack, %2, %j, %zero, %zero : (tensor<5x2x6xf32>, tensor<1x2x6xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x2x6xf32>
      %4 = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %4, %3 : tensor<i32>, tensor<5x2x6xf32>
    }
  return %0#1 : tensor<5x2x6xf32>
}

// Sums in a wider type are communicated in it: of three iterations that is less, of two it is not. Integers are not widened.
// CHECK-LABEL: func.func @widened
// CHECK:         stablehlo.while
// CHECK:           %[[X:.*]] = stablehlo.convert %arg0
// CHECK-NEXT:      stablehlo.add {{.*}}, %[[X]]
// CHECK-NEXT:      mesh.all_reduce %arg1
// CHECK:         mesh.all_reduce {{.*}} : tensor<4xf32>
// CHECK:         stablehlo.while
// CHECK:           mesh.all_reduce %arg0
func.func @widened(%x: tensor<4xbf16>, %y: tensor<4xi16>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %none = stablehlo.constant dense<0> : tensor<4xi32>
  %0:3 = stablehlo.while(%i = %zero, %a = %zeros, %b = %none) : tensor<i32>, tensor<4xf32>, tensor<4xi32>
    cond {
      %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xbf16> -> tensor<4xbf16>
      %3 = stablehlo.convert %2 : (tensor<4xbf16>) -> tensor<4xf32>
      %4 = stablehlo.add %a, %3 : tensor<4xf32>
      %5 = mesh.all_reduce %y on @m mesh_axes = [0] : tensor<4xi16> -> tensor<4xi16>
      %6 = stablehlo.convert %5 : (tensor<4xi16>) -> tensor<4xi32>
      %7 = stablehlo.add %b, %6 : tensor<4xi32>
      %8 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %8, %4, %7 : tensor<i32>, tensor<4xf32>, tensor<4xi32>
    }
  %1:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %2 = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xbf16> -> tensor<4xbf16>
      %3 = stablehlo.convert %2 : (tensor<4xbf16>) -> tensor<4xf32>
      %4 = stablehlo.add %a, %3 : tensor<4xf32>
      %5 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %5, %4 : tensor<i32>, tensor<4xf32>
    }
  return %0#1, %1#1, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}

// Devices write other rows, each its own: the sum of stacks is not the stack of sums.
// CHECK-LABEL: func.func @own_rows
// CHECK:         stablehlo.while
// CHECK:           mesh.all_reduce
func.func @own_rows(%x: tensor<6xf32>) -> tensor<5x6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %rows = stablehlo.constant dense<5> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<5x6xf32>
  %own = stablehlo.partition_id : tensor<ui32>
  %mine = stablehlo.convert %own : (tensor<ui32>) -> tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %sum = %zeros) : tensor<i32>, tensor<5x6xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %rows : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1:2 = stablehlo.while(%j = %zero, %stack = %zeros) : tensor<i32>, tensor<5x6xf32>
        cond {
          %4 = stablehlo.compare LT, %j, %rows : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %4 : tensor<i1>
        } do {
          %4 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<6xf32> -> tensor<6xf32>
          %5 = stablehlo.reshape %4 : (tensor<6xf32>) -> tensor<1x6xf32>
          %6 = stablehlo.add %j, %mine : tensor<i32>
          %7 = stablehlo.dynamic_update_slice %stack, %5, %6, %zero : (tensor<5x6xf32>, tensor<1x6xf32>, tensor<i32>, tensor<i32>) -> tensor<5x6xf32>
          %8 = stablehlo.add %j, %one : tensor<i32>
          stablehlo.return %8, %7 : tensor<i32>, tensor<5x6xf32>
        }
      %2 = stablehlo.add %sum, %1#1 : tensor<5x6xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2 : tensor<i32>, tensor<5x6xf32>
    }
  return %0#1 : tensor<5x6xf32>
}

// What is added up goes through a branch, which may return something else.
// CHECK-LABEL: func.func @through_a_branch
// CHECK:         stablehlo.while
// CHECK:           mesh.all_reduce
func.func @through_a_branch(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
      %2 = stablehlo.add %a, %1 : tensor<4xf32>
      %flag = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %3 = "stablehlo.if"(%flag) ({
        stablehlo.return %2 : tensor<4xf32>
      }, {
        stablehlo.return %zeros : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>
      %4 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %4, %3 : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}
