// RUN: mesh-opt %s --split-input-file --keep-schedule='machine=h100 least=0' | filecheck %s
// RUN: mesh-opt %s --split-input-file --keep-schedule='least=0' | filecheck %s --check-prefix=FREE
// RUN: mesh-opt %s --split-input-file --keep-schedule='machine=h100 least=1000000000000' | filecheck %s --check-prefix=FREE
// RUN: mesh-opt %s --split-input-file --keep-schedule='machine=v5p compiler-options=best least=0' | filecheck %s --check-prefix=TPU

// FREE-NOT: optimization_barrier

mesh.mesh @m(shape = 2x4)

// The gradient's product runs beside the reduction that the next product waits for, not beside its own.
// CHECK-LABEL: func.func @beside
// CHECK:         %[[BACK:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK:         %[[SUM:.*]] = mesh.all_reduce %[[BACK]]
// CHECK:         %[[GRADIENT:.*]] = stablehlo.dot_general %arg2, %arg0
// CHECK:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[SUM]], %[[GRADIENT]]
// CHECK:         %[[REDUCED:.*]] = mesh.all_reduce %[[GRADIENT]]
// CHECK:         stablehlo.dot_general %[[HELD]]#0, %arg1
// CHECK:         return %[[REDUCED]]
func.func @beside(%cotangent: tensor<512x512xf32>, %w: tensor<512x512xf32>, %x: tensor<512x512xf32>)
    -> (tensor<512x512xf32>, tensor<512x512xf32>) {
  %0 = stablehlo.dot_general %cotangent, %w, contracting_dims = [1] x [1] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<512x512xf32> -> tensor<512x512xf32>
  %2 = stablehlo.dot_general %x, %cotangent, contracting_dims = [0] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %3 = mesh.all_reduce %2 on @m mesh_axes = [1] : tensor<512x512xf32> -> tensor<512x512xf32>
  %4 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %3, %4 : tensor<512x512xf32>, tensor<512x512xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// The reduction of a large gradient is begun first, and moves up; what is reduced for the layer before waits for it. The gradient
// is scaled as its product writes it.
// CHECK-LABEL: func.func @in_order
// CHECK:         %[[BACK:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK:         %[[GRADIENT:.*]] = stablehlo.dot_general %arg2, %arg0
// CHECK:         %[[SCALED:.*]] = stablehlo.multiply %{{.*}}, %[[GRADIENT]]
// CHECK:         %[[REDUCED:.*]] = mesh.all_reduce %[[SCALED]]
// CHECK:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[BACK]], %[[REDUCED]]
// CHECK:         %[[SUM:.*]] = mesh.all_reduce %[[HELD]]#0
// CHECK:         stablehlo.dot_general %[[SUM]]
// CHECK:         return %[[REDUCED]]
func.func @in_order(%cotangent: tensor<8192x16384xf32>, %w: tensor<4096x16384xf32>, %x: tensor<8192x4096xf32>, %v: tensor<4096x16xf32>)
    -> (tensor<4096x16384xf32>, tensor<8192x16xf32>) {
  %rate = stablehlo.constant dense<0.1> : tensor<4096x16384xf32>
  %0 = stablehlo.dot_general %cotangent, %w, contracting_dims = [1] x [1] : (tensor<8192x16384xf32>, tensor<4096x16384xf32>) -> tensor<8192x4096xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<8192x4096xf32> -> tensor<8192x4096xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x16xf32>) -> tensor<8192x16xf32>
  %3 = stablehlo.dot_general %x, %cotangent, contracting_dims = [0] x [0] : (tensor<8192x4096xf32>, tensor<8192x16384xf32>) -> tensor<4096x16384xf32>
  %4 = stablehlo.multiply %rate, %3 : tensor<4096x16384xf32>
  %5 = mesh.all_reduce %4 on @m mesh_axes = [1] : tensor<4096x16384xf32> -> tensor<4096x16384xf32>
  return %5, %2 : tensor<4096x16384xf32>, tensor<8192x16xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// Gathers that wait for no product stay free, and so does what the compiler may join with another.
// CHECK-LABEL: func.func @early
// CHECK-NOT:     optimization_barrier
func.func @early(%x: tensor<512x512xf32>, %v: tensor<256x512xf32>, %w: tensor<128x512xf32>) -> tensor<512x512xf32> {
  %0 = mesh.all_gather %v on @m mesh_axes = [0] gather_axis = 0 : tensor<256x512xf32> -> tensor<512x512xf32>
  %1 = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 0 : tensor<128x512xf32> -> tensor<512x512xf32>
  %2 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %3 = stablehlo.dot_general %2, %1, contracting_dims = [1] x [0] : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %3 : tensor<512x512xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// XLA:TPU begins gathers as late as it can: one that a product reads beside what is exchanged for it ends before the exchange, beside
// the products before that. What only later products read has that product to hide behind.
// CHECK-LABEL: func.func @gathered
// CHECK-NOT:     optimization_barrier
//
// TPU-LABEL: func.func @gathered
// TPU:         %[[FIRST:.*]] = stablehlo.dot_general %arg0, %arg1
// TPU:         %[[WEIGHT:.*]] = mesh.all_gather %arg2
// TPU:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[FIRST]], %[[WEIGHT]]
// TPU:         %[[ROWS:.*]] = mesh.all_to_all %[[HELD]]#0
// TPU:         stablehlo.dot_general %[[ROWS]], %[[HELD]]#1
// TPU-NOT:     optimization_barrier
// TPU:         return
func.func @gathered(%x: tensor<8192x4096xf32>, %u: tensor<4096x4096xf32>, %v: tensor<1024x2048xf32>, %w: tensor<512x1024xf32>) -> tensor<16384x1024xf32> {
  %0 = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x4096xf32>) -> tensor<8192x4096xf32>
  %1 = mesh.all_to_all %0 on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<8192x4096xf32> -> tensor<16384x2048xf32>
  %2 = mesh.all_gather %v on @m mesh_axes = [0] gather_axis = 0 : tensor<1024x2048xf32> -> tensor<2048x2048xf32>
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [1] x [0] : (tensor<16384x2048xf32>, tensor<2048x2048xf32>) -> tensor<16384x2048xf32>
  %4 = mesh.all_gather %w on @m mesh_axes = [1] gather_axis = 0 : tensor<512x1024xf32> -> tensor<2048x1024xf32>
  %5 = stablehlo.dot_general %3, %4, contracting_dims = [1] x [0] : (tensor<16384x2048xf32>, tensor<2048x1024xf32>) -> tensor<16384x1024xf32>
  return %5 : tensor<16384x1024xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// Little is computed between the exchanges. The gathers that meet the second one end before the first, which waits for both; what a
// product reads before that stays as it is.
// TPU-LABEL: func.func @earlier
// TPU:         %[[READ:.*]] = mesh.all_gather %arg1
// TPU:         %[[FIRST:.*]] = stablehlo.dot_general %arg0, %[[READ]]
// TPU-DAG:     %[[UP:.*]] = mesh.all_gather %arg3
// TPU-DAG:     %[[GATE:.*]] = mesh.all_gather %arg4
// TPU:         %[[HELD:.*]]:3 = stablehlo.optimization_barrier %[[FIRST]], %[[UP]], %[[GATE]]
// TPU:         mesh.all_to_all %[[HELD]]#0
// TPU:         mesh.all_to_all
// TPU:         stablehlo.dot_general %{{.*}}, %[[HELD]]#1
// TPU:         stablehlo.dot_general %{{.*}}, %[[HELD]]#2
// TPU-NOT:     optimization_barrier
// TPU:         return
func.func @earlier(%x: tensor<8192x4096xf32>, %u: tensor<2048x4096xf32>, %v: tensor<2048x128xf32>, %w: tensor<32x4096xf32>, %g: tensor<32x4096xf32>)
    -> (tensor<32768x4096xf32>, tensor<32768x4096xf32>, tensor<32768x4096xf32>) {
  %0 = mesh.all_gather %u on @m mesh_axes = [0] gather_axis = 0 : tensor<2048x4096xf32> -> tensor<4096x4096xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x4096xf32>) -> tensor<8192x4096xf32>
  %2 = mesh.all_to_all %1 on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<8192x4096xf32> -> tensor<16384x2048xf32>
  %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0] : (tensor<16384x2048xf32>, tensor<2048x128xf32>) -> tensor<16384x128xf32>
  %4 = mesh.all_to_all %3 on @m mesh_axes = [0] split_axis = 1 concat_axis = 0 : tensor<16384x128xf32> -> tensor<32768x64xf32>
  %5 = mesh.all_gather %w on @m mesh_axes = [0] gather_axis = 0 : tensor<32x4096xf32> -> tensor<64x4096xf32>
  %6 = mesh.all_gather %g on @m mesh_axes = [0] gather_axis = 0 : tensor<32x4096xf32> -> tensor<64x4096xf32>
  %7 = stablehlo.dot_general %4, %5, contracting_dims = [1] x [0] : (tensor<32768x64xf32>, tensor<64x4096xf32>) -> tensor<32768x4096xf32>
  %8 = stablehlo.dot_general %4, %6, contracting_dims = [1] x [0] : (tensor<32768x64xf32>, tensor<64x4096xf32>) -> tensor<32768x4096xf32>
  %9 = stablehlo.slice %0 [0:64, 0:4096] : (tensor<4096x4096xf32>) -> tensor<64x4096xf32>
  %10 = stablehlo.dot_general %4, %9, contracting_dims = [1] x [0] : (tensor<32768x64xf32>, tensor<64x4096xf32>) -> tensor<32768x4096xf32>
  return %7, %8, %10 : tensor<32768x4096xf32>, tensor<32768x4096xf32>, tensor<32768x4096xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// A gather is held until it is read, so that it is awaited by the exchange before that at most, whatever is computed further up: a
// residual stream is made of all exchanges.
// TPU-LABEL: func.func @stream
// TPU:         mesh.all_reduce
// TPU-NOT:     optimization_barrier
// TPU:         mesh.all_reduce
// TPU:         %[[WEIGHT:.*]] = mesh.all_gather %arg4
// TPU:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[WEIGHT]]
// TPU:         mesh.all_reduce %[[HELD]]#0
// TPU:         stablehlo.dot_general %{{.*}}, %[[HELD]]#1
func.func @stream(%x: tensor<8192x4096xf32>, %u: tensor<4096x4096xf32>, %v: tensor<4096x512xf32>, %w: tensor<512x4096xf32>, %g: tensor<2048x512xf32>) -> tensor<8192x512xf32> {
  %0 = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x4096xf32>) -> tensor<8192x4096xf32>
  %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<8192x4096xf32> -> tensor<8192x4096xf32>
  %2 = stablehlo.add %x, %1 : tensor<8192x4096xf32>
  %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x512xf32>) -> tensor<8192x512xf32>
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8192x512xf32>, tensor<512x4096xf32>) -> tensor<8192x4096xf32>
  %5 = mesh.all_reduce %4 on @m mesh_axes = [0] : tensor<8192x4096xf32> -> tensor<8192x4096xf32>
  %6 = stablehlo.add %2, %5 : tensor<8192x4096xf32>
  %7 = stablehlo.dot_general %6, %v, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x512xf32>) -> tensor<8192x512xf32>
  %8 = stablehlo.dot_general %7, %w, contracting_dims = [1] x [0] : (tensor<8192x512xf32>, tensor<512x4096xf32>) -> tensor<8192x4096xf32>
  %9 = mesh.all_reduce %8 on @m mesh_axes = [0] : tensor<8192x4096xf32> -> tensor<8192x4096xf32>
  %10 = stablehlo.add %6, %9 : tensor<8192x4096xf32>
  %11 = mesh.all_gather %g on @m mesh_axes = [0] gather_axis = 0 : tensor<2048x512xf32> -> tensor<4096x512xf32>
  %12 = stablehlo.dot_general %10, %11, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x512xf32>) -> tensor<8192x512xf32>
  return %12 : tensor<8192x512xf32>
}

// -----

mesh.mesh @m(shape = 2x4)

// What is gathered for the next iteration ends before the last exchange of this one, beside the product before it.
// TPU-LABEL: func.func @ahead
// TPU:         stablehlo.while
// TPU:         %[[PRODUCT:.*]] = stablehlo.dot_general
// TPU:         %[[NEXT:.*]] = mesh.all_gather
// TPU:         %[[HELD:.*]]:2 = stablehlo.optimization_barrier %[[PRODUCT]], %[[NEXT]]
// TPU:         %[[SUM:.*]] = mesh.all_reduce %[[HELD]]#0
// TPU:         stablehlo.return %{{.*}}, %{{.*}}, %[[HELD]]#1
func.func @ahead(%x: tensor<8192x4096xf32>, %w: tensor<4096x4096xf32>, %stack: tensor<8x2048x4096xf32>) -> tensor<8192x4096xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %rows = %x, %gathered = %w) : tensor<i32>, tensor<8192x4096xf32>, tensor<4096x4096xf32>
  cond {
    %end = stablehlo.constant dense<8> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %none = stablehlo.constant dense<0> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dot_general %rows, %gathered, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x4096xf32>) -> tensor<8192x4096xf32>
    %2 = mesh.all_reduce %1 on @m mesh_axes = [1] : tensor<8192x4096xf32> -> tensor<8192x4096xf32>
    %3 = stablehlo.dynamic_slice %stack, %next, %none, %none, sizes = [1, 2048, 4096] : (tensor<8x2048x4096xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2048x4096xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x2048x4096xf32>) -> tensor<2048x4096xf32>
    %5 = mesh.all_gather %4 on @m mesh_axes = [0] gather_axis = 0 : tensor<2048x4096xf32> -> tensor<4096x4096xf32>
    %6 = stablehlo.add %rows, %2 : tensor<8192x4096xf32>
    stablehlo.return %next, %6, %5 : tensor<i32>, tensor<8192x4096xf32>, tensor<4096x4096xf32>
  }
  return %0#1 : tensor<8192x4096xf32>
}
