// RUN: mesh-opt %s --prefetch-gathers='least=0' | filecheck %s
// RUN: mesh-opt %s --prefetch-gathers='least=0 most=128' | filecheck %s --check-prefix=SMALL
// RUN: mesh-opt %s --prefetch-gathers | filecheck %s --check-prefix=SMALL
// RUN: mesh-opt %s --prefetch-gathers='least=0 again=true' | filecheck %s --check-prefix=ASIDE

mesh.mesh @m(shape = 2x4)

// The layers of a stack: what the first product of an iteration reads is gathered during the iteration before, after that product. The
// second product's operand has the first one to hide behind.
// SMALL-LABEL: func.func @layers
// SMALL-NOT:     optimization_barrier
// CHECK-LABEL: func.func @layers
// CHECK:         %[[FIRST:.*]] = mesh.all_gather
// CHECK:         stablehlo.while({{.*}} = %[[FIRST]])
// CHECK:           %[[LIMIT:.*]] = stablehlo.constant dense<3>
// CHECK:           stablehlo.compare LT, %{{.*}}, %[[LIMIT]]
// CHECK:           %[[P:.*]] = stablehlo.dot_general %{{.*}}, %[[CARRIED:iterArg_[0-9]+]],
// CHECK:           stablehlo.add
// CHECK:           %[[SHARD:.*]] = stablehlo.dynamic_slice
// CHECK:           %[[ROWS:.*]] = stablehlo.reshape %[[SHARD]]
// CHECK:           %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[ROWS]], %[[P]]
// CHECK:           %[[NEXT:.*]] = mesh.all_gather %[[HELD]]#0
// CHECK:           mesh.all_gather
// CHECK:           stablehlo.dot_general
// CHECK:           stablehlo.return {{.*}}, %[[NEXT]]
// CHECK:         stablehlo.dot_general
// CHECK:         mesh.all_gather
// CHECK:         stablehlo.dot_general
// CHECK:         return
//
// The loop runs as often as before, and its last iteration gathers the last shard again.
// ASIDE-LABEL: func.func @layers
// ASIDE:         %[[FIRST:.*]] = mesh.all_gather
// ASIDE:         stablehlo.while({{.*}} = %[[FIRST]])
// ASIDE:           %[[LIMIT:.*]] = stablehlo.constant dense<4>
// ASIDE:           stablehlo.compare LT, %{{.*}}, %[[LIMIT]]
// ASIDE:           %[[P:.*]] = stablehlo.dot_general %{{.*}}, %[[CARRIED:iterArg_[0-9]+]],
// ASIDE:           %[[HELD:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[P]]
// ASIDE:           %[[NEXT:.*]] = mesh.all_gather %[[HELD]]#0
// ASIDE-NOT:       optimization_barrier
// ASIDE:           stablehlo.return {{.*}}, %[[NEXT]]
// ASIDE:         return
func.func @layers(%w: tensor<4x2x8xf32>, %v: tensor<4x2x8xf32>, %x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:4 = stablehlo.while(%i = %zero, %a = %w, %b = %v, %y = %x) : tensor<i32>, tensor<4x2x8xf32>, tensor<4x2x8xf32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.dynamic_slice %a, %i, %none, %none, sizes = [1, 2, 8] : (tensor<4x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2x8xf32>) -> tensor<2x8xf32>
      %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xf32> -> tensor<8x8xf32>
      %4 = stablehlo.dot_general %y, %3, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %5 = stablehlo.dynamic_slice %b, %i, %none, %none, sizes = [1, 2, 8] : (tensor<4x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
      %6 = stablehlo.reshape %5 : (tensor<1x2x8xf32>) -> tensor<2x8xf32>
      %7 = mesh.all_gather %6 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xf32> -> tensor<8x8xf32>
      %8 = stablehlo.dot_general %4, %7, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %9 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %9, %a, %b, %8 : tensor<i32>, tensor<4x2x8xf32>, tensor<4x2x8xf32>, tensor<4x8xf32>
    }
  return %0#3 : tensor<4x8xf32>
}

// From the last layer to the first, along two axes one after the other, through a barrier: only the shard waits.
// SMALL-LABEL: func.func @backwards
// CHECK-LABEL: func.func @backwards
// CHECK:         %[[HALF:.*]] = mesh.all_gather {{.*}} mesh_axes = [0]
// CHECK:         %[[FIRST:.*]] = mesh.all_gather %[[HALF]] on @m mesh_axes = [1]
// CHECK:         stablehlo.while({{.*}} = %[[FIRST]])
// CHECK:           %[[P:.*]] = stablehlo.dot_general
// CHECK:           %[[HELD:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[P]]
// CHECK:           %[[NEXT:.*]] = mesh.all_gather %[[HELD]]#0 on @m mesh_axes = [0]
// CHECK:           mesh.all_gather %[[NEXT]] on @m mesh_axes = [1]
// CHECK:         return
func.func @backwards(%w: tensor<3x1x8xf32>, %x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %a = %w, %y = %x) : tensor<i32>, tensor<3x1x8xf32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %last = stablehlo.constant dense<2> : tensor<i32>
      %layer = stablehlo.subtract %last, %i : tensor<i32>
      %1 = stablehlo.dynamic_slice %a, %layer, %none, %none, sizes = [1, 1, 8] : (tensor<3x1x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1x8xf32>
      %2:2 = stablehlo.optimization_barrier %1, %y : tensor<1x1x8xf32>, tensor<4x8xf32>
      %3 = stablehlo.reshape %2#0 : (tensor<1x1x8xf32>) -> tensor<1x8xf32>
      %4 = mesh.all_gather %3 on @m mesh_axes = [0] gather_axis = 0 : tensor<1x8xf32> -> tensor<2x8xf32>
      %5 = mesh.all_gather %4 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xf32> -> tensor<8x8xf32>
      %6 = stablehlo.dot_general %2#1, %5, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %7 = stablehlo.tanh %6 : tensor<4x8xf32>
      %8 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %8, %a, %7 : tensor<i32>, tensor<3x1x8xf32>, tensor<4x8xf32>
    }
  return %0#2 : tensor<4x8xf32>
}

// What is read twice stays alive until its last reader; what depends on the iteration before cannot be gathered ahead.
// CHECK-LABEL: func.func @kept
// CHECK-NOT:     optimization_barrier
// CHECK:         return
func.func @kept(%w: tensor<4x2x8xf32>, %x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %a = %w, %y = %x) : tensor<i32>, tensor<4x2x8xf32>, tensor<2x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.dynamic_slice %a, %i, %none, %none, sizes = [1, 2, 8] : (tensor<4x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x2x8xf32>) -> tensor<2x8xf32>
      %3 = mesh.all_gather %2 on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xf32> -> tensor<8x8xf32>
      %4 = stablehlo.dot_general %y, %3, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
      %5 = stablehlo.dot_general %4, %3, contracting_dims = [1] x [1] : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
      %6 = mesh.all_gather %y on @m mesh_axes = [1] gather_axis = 0 : tensor<2x8xf32> -> tensor<8x8xf32>
      %7 = stablehlo.dot_general %y, %6, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
      %8 = stablehlo.add %5, %7 : tensor<2x8xf32>
      %9 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %9, %a, %8 : tensor<i32>, tensor<4x2x8xf32>, tensor<2x8xf32>
    }
  return %0#2 : tensor<2x8xf32>
}
