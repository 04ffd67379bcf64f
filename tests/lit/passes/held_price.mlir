// RUN: mesh-opt %s --hoist-collectives | filecheck %s --check-prefixes=HOIST,HOIST-BOUND
// RUN: mesh-opt %s --hoist-collectives='machine=v5e' | filecheck %s --check-prefixes=HOIST,HOIST-BOUND
// RUN: mesh-opt %s --hoist-collectives='machine=h100' | filecheck %s --check-prefixes=HOIST,HOIST-PRICED
// RUN: mesh-opt %s --delay-reductions | filecheck %s --check-prefixes=DELAY,DELAY-BOUND
// RUN: mesh-opt %s --delay-reductions='machine=v5e' | filecheck %s --check-prefixes=DELAY,DELAY-BOUND
// RUN: mesh-opt %s --delay-reductions='machine=h100' | filecheck %s --check-prefixes=DELAY,DELAY-PRICED
// RUN: mesh-opt %s --prefetch-gathers | filecheck %s --check-prefix=AHEAD
// RUN: mesh-opt %s --prefetch-gathers='machine=h100' | filecheck %s --check-prefix=AHEAD-PRICED

mesh.mesh @m(shape = 8)

// A gathered weight of 134 MB that three iterations read is held for them, unless a held byte costs four sent ones. A small one saves launches.
// HOIST-LABEL:      func.func @gathered
// HOIST-BOUND:        mesh.all_gather {{.*}} -> tensor<8192x8192xbf16>
// HOIST:              mesh.all_gather {{.*}} -> tensor<8192xbf16>
// HOIST:              stablehlo.while
// HOIST-BOUND-NOT:    mesh.all_gather
// HOIST-PRICED:       mesh.all_gather {{.*}} -> tensor<8192x8192xbf16>
// HOIST:              return
func.func @gathered(%w: tensor<1024x8192xbf16>, %v: tensor<1024xbf16>, %x: tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<8192x8192xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = mesh.all_gather %w on @m mesh_axes = [0] gather_axis = 0 : tensor<1024x8192xbf16> -> tensor<8192x8192xbf16>
      %3 = mesh.all_gather %v on @m mesh_axes = [0] gather_axis = 0 : tensor<1024xbf16> -> tensor<8192xbf16>
      %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<8192xbf16>) -> tensor<8192x8192xbf16>
      %5 = stablehlo.add %a, %2 : tensor<8192x8192xbf16>
      %6 = stablehlo.add %5, %4 : tensor<8192x8192xbf16>
      stablehlo.return %1, %6 : tensor<i32>, tensor<8192x8192xbf16>
    }
  return %0#1 : tensor<8192x8192xbf16>
}

// The same of sums: the partial one of 134 MB is reduced in each iteration where held bytes have a price.
// DELAY-LABEL:      func.func @summed
// DELAY:              stablehlo.while
// DELAY-BOUND-NOT:    mesh.reduce_scatter
// DELAY-PRICED:       mesh.reduce_scatter {{.*}} -> tensor<1024x8192xbf16>
// DELAY-PRICED-NOT:   mesh.reduce_scatter
// DELAY:              stablehlo.return
// DELAY-NEXT:       }
// DELAY:              mesh.reduce_scatter {{.*}} -> tensor<1024xbf16>
// DELAY-BOUND:        mesh.reduce_scatter {{.*}} -> tensor<1024x8192xbf16>
// DELAY:              return
func.func @summed(%w: tensor<8192x8192xbf16>, %v: tensor<8192xbf16>) -> (tensor<1024x8192xbf16>, tensor<1024xbf16>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<1024x8192xbf16>
  %few = stablehlo.constant dense<0.0> : tensor<1024xbf16>
  %0:3 = stablehlo.while(%i = %zero, %a = %zeros, %b = %few) : tensor<i32>, tensor<1024x8192xbf16>, tensor<1024xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = mesh.reduce_scatter %w on @m mesh_axes = [0] scatter_axis = 0 : tensor<8192x8192xbf16> -> tensor<1024x8192xbf16>
      %3 = mesh.reduce_scatter %v on @m mesh_axes = [0] scatter_axis = 0 : tensor<8192xbf16> -> tensor<1024xbf16>
      %4 = stablehlo.add %a, %2 : tensor<1024x8192xbf16>
      %5 = stablehlo.add %b, %3 : tensor<1024xbf16>
      stablehlo.return %1, %4, %5 : tensor<i32>, tensor<1024x8192xbf16>, tensor<1024xbf16>
    }
  return %0#1, %0#2 : tensor<1024x8192xbf16>, tensor<1024xbf16>
}

// Stacks of rows that an outer loop sums: after both loops their sum is communicated once, if that saves what both hold.
// DELAY-LABEL:      func.func @stacked
// DELAY:              stablehlo.while
// DELAY:                stablehlo.while
// DELAY-BOUND-NOT:        mesh.reduce_scatter
// DELAY-PRICED:           mesh.reduce_scatter {{.*}} -> tensor<512x4096xbf16>
// DELAY-PRICED-NOT:       mesh.reduce_scatter
// DELAY:                stablehlo.return
// DELAY-BOUND:        mesh.reduce_scatter {{.*}} -> tensor<4x512x4096xbf16>
// DELAY:              return
func.func @stacked(%w: tensor<4096x4096xbf16>) -> tensor<4x512x4096xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x512x4096xbf16>
  %0:2 = stablehlo.while(%i = %zero, %a = %zeros) : tensor<i32>, tensor<4x512x4096xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2:2 = stablehlo.while(%j = %zero, %s = %zeros) : tensor<i32>, tensor<4x512x4096xbf16>
        cond {
          %3 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %3 : tensor<i1>
        } do {
          %3 = stablehlo.add %j, %one : tensor<i32>
          %4 = mesh.reduce_scatter %w on @m mesh_axes = [0] scatter_axis = 0 : tensor<4096x4096xbf16> -> tensor<512x4096xbf16>
          %5 = stablehlo.reshape %4 : (tensor<512x4096xbf16>) -> tensor<1x512x4096xbf16>
          %6 = stablehlo.dynamic_update_slice %s, %5, %j, %zero, %zero : (tensor<4x512x4096xbf16>, tensor<1x512x4096xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x512x4096xbf16>
          stablehlo.return %3, %6 : tensor<i32>, tensor<4x512x4096xbf16>
        }
      %7 = stablehlo.add %a, %2#1 : tensor<4x512x4096xbf16>
      stablehlo.return %1, %7 : tensor<i32>, tensor<4x512x4096xbf16>
    }
  return %0#1 : tensor<4x512x4096xbf16>
}

// Three iterations do not wait for 134 MB that are gathered ahead, less than four held bytes cost: enough are five.
// AHEAD-LABEL:        func.func @short
// AHEAD:                optimization_barrier
// AHEAD-LABEL:        func.func @long
// AHEAD:                optimization_barrier
// AHEAD-PRICED-LABEL: func.func @short
// AHEAD-PRICED-NOT:     optimization_barrier
// AHEAD-PRICED-LABEL: func.func @long
// AHEAD-PRICED:         optimization_barrier
func.func @short(%w: tensor<4x1024x8192xbf16>, %x: tensor<64x8192xbf16>) -> tensor<64x8192xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<64x8192xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 1024, 8192] : (tensor<4x1024x8192xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x8192xbf16>
      %3 = stablehlo.reshape %2 : (tensor<1x1024x8192xbf16>) -> tensor<1024x8192xbf16>
      %4 = mesh.all_gather %3 on @m mesh_axes = [0] gather_axis = 0 : tensor<1024x8192xbf16> -> tensor<8192x8192xbf16>
      %5 = stablehlo.dot_general %y, %4, contracting_dims = [1] x [0] : (tensor<64x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<64x8192xbf16>
      stablehlo.return %1, %5 : tensor<i32>, tensor<64x8192xbf16>
    }
  return %0#1 : tensor<64x8192xbf16>
}

func.func @long(%w: tensor<8x1024x8192xbf16>, %x: tensor<64x8192xbf16>) -> tensor<64x8192xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<8> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<64x8192xbf16>
    cond {
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 1024, 8192] : (tensor<8x1024x8192xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x8192xbf16>
      %3 = stablehlo.reshape %2 : (tensor<1x1024x8192xbf16>) -> tensor<1024x8192xbf16>
      %4 = mesh.all_gather %3 on @m mesh_axes = [0] gather_axis = 0 : tensor<1024x8192xbf16> -> tensor<8192x8192xbf16>
      %5 = stablehlo.dot_general %y, %4, contracting_dims = [1] x [0] : (tensor<64x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<64x8192xbf16>
      stablehlo.return %1, %5 : tensor<i32>, tensor<64x8192xbf16>
    }
  return %0#1 : tensor<64x8192xbf16>
}
