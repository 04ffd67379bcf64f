// RUN: mesh-opt %s --legalize | filecheck %s

// CHECK-LABEL: func.func @sliced
// CHECK-NOT:     tensor<9xf32>
// CHECK:         stablehlo.pad %arg0, {{.*}}, low = [1], high = [-1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
// CHECK-NOT:     stablehlo.slice
func.func @sliced(%x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.pad %x, %zero, low = [1], high = [0], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = stablehlo.slice %0 [0:8] : (tensor<9xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// What pads is what the maximum ignores.
// CHECK-LABEL: func.func @pooled
// CHECK:         "stablehlo.reduce_window"(%arg0, {{.*}}padding = dense<{{\[\[}}0, 1]]>
func.func @pooled(%x: tensor<8xf32>) -> tensor<4xf32> {
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.pad %x, %lowest, low = [0], high = [1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = "stablehlo.reduce_window"(%0, %lowest) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %m = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>} : (tensor<9xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Zeros are not: they may be the maximum.
// CHECK-LABEL: func.func @bordered
// CHECK:         %[[PADDED:.*]] = stablehlo.pad %arg0
// CHECK:         "stablehlo.reduce_window"(%[[PADDED]]
func.func @bordered(%x: tensor<8xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.pad %x, %zero, low = [0], high = [1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = "stablehlo.reduce_window"(%0, %lowest) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %m = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>} : (tensor<9xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// The gradient of pooling, as JAX writes it: what is scattered into the padding is cut off, and a window may select padding.
// CHECK-LABEL: func.func @scattered
// CHECK-NOT:     stablehlo.pad
// CHECK:         stablehlo.composite "meshbridge.padded_selection" %arg0, %arg1, %{{.*}} {decomposition = @padded_selection_0}
// CHECK-NOT:     stablehlo.pad
func.func @scattered(%x: tensor<8xf32>, %g: tensor<4xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.pad %x, %lowest, low = [0], high = [1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = "stablehlo.select_and_scatter"(%0, %g, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>} : (tensor<9xf32>, tensor<4xf32>, tensor<f32>) -> tensor<9xf32>
  %2 = stablehlo.pad %1, %zero, low = [0], high = [-1], interior = [0] : (tensor<9xf32>, tensor<f32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// A window may select the pad and never the op's own padding, so they stay apart.
// CHECK-LABEL: func.func @apart
// CHECK:         %[[PADDED:.*]] = stablehlo.pad %arg0
// CHECK:         "stablehlo.select_and_scatter"(%[[PADDED]]
func.func @apart(%x: tensor<8xf32>, %g: tensor<4xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.pad %x, %lowest, low = [1], high = [0], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = "stablehlo.select_and_scatter"(%0, %g, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>, padding = dense<[[0, 1]]> : tensor<1x2xi64>}
    : (tensor<9xf32>, tensor<4xf32>, tensor<f32>) -> tensor<9xf32>
  %2 = stablehlo.slice %1 [1:9] : (tensor<9xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// What is cut off is padded again: by another pad, which a slice reads.
// CHECK-LABEL: func.func @chain
// CHECK:         %[[G:.*]] = stablehlo.composite "meshbridge.padded_selection" %arg0, %arg1, %{{.*}} {decomposition = @padded_selection_0}
// CHECK:         stablehlo.pad %[[G]], {{.*}}, low = [1], high = [-1]
// CHECK-NOT:     stablehlo.slice
func.func @chain(%x: tensor<8xf32>, %g: tensor<4xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.pad %x, %lowest, low = [0], high = [1], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %1 = "stablehlo.select_and_scatter"(%0, %g, %zero) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>} : (tensor<9xf32>, tensor<4xf32>, tensor<f32>) -> tensor<9xf32>
  %2 = stablehlo.pad %1, %zero, low = [0], high = [-1], interior = [0] : (tensor<9xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.pad %2, %zero, low = [1], high = [0], interior = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<9xf32>
  %4 = stablehlo.slice %3 [0:8] : (tensor<9xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}

// CHECK-LABEL: func.func @convolved
// CHECK:         stablehlo.convolution(%arg0, %arg1) {{.*}}pad = {{\[\[}}2, 1]]
func.func @convolved(%x: tensor<1x8x2xf32>, %k: tensor<3x2x2xf32>) -> tensor<1x9x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.pad %x, %zero, low = [0, 2, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<1x8x2xf32>, tensor<f32>) -> tensor<1x10x2xf32>
  %1 = stablehlo.convolution(%0, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[0, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x10x2xf32>, tensor<3x2x2xf32>) -> tensor<1x9x2xf32>
  return %1 : tensor<1x9x2xf32>
}

// What the composite of both functions above says in StableHLO.
// CHECK-LABEL: func.func private @padded_selection_0
// CHECK:         %[[PADDED:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [0], high = [1], interior = [0]
// CHECK:         %[[SELECTED:.*]] = "stablehlo.select_and_scatter"(%[[PADDED]], %arg1, %arg2)
// CHECK:         stablehlo.slice %[[SELECTED]] [0:8]
// CHECK-NOT:   @padded_selection
