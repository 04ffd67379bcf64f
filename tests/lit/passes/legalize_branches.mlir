// RUN: mesh-opt %s --legalize=fold-cases | filecheck %s

// Branches that a constant chooses stand in place of the op, also those that a chosen branch chooses.
// CHECK-LABEL: func.func @chosen(
// CHECK-NOT: stablehlo.case
// CHECK-NOT: stablehlo.sine
// CHECK: %[[COS:.*]] = stablehlo.cosine %arg0
// CHECK-NOT: stablehlo.if
// CHECK: stablehlo.negate %[[COS]]
// CHECK-NOT: stablehlo.abs
// CHECK: return
func.func @chosen(%x: tensor<8xf32>) -> tensor<8xf32> {
  %c = stablehlo.constant dense<1> : tensor<i32>
  %which = "stablehlo.case"(%c) ({
    %0 = stablehlo.constant dense<0> : tensor<i32>
    stablehlo.return %0 : tensor<i32>
  }, {
    %0 = stablehlo.constant dense<-7> : tensor<i32>
    stablehlo.return %0 : tensor<i32>
  }) : (tensor<i32>) -> tensor<i32>
  %1 = "stablehlo.case"(%which) ({
    %2 = stablehlo.sine %x : tensor<8xf32>
    stablehlo.return %2 : tensor<8xf32>
  }, {
    %2 = stablehlo.cosine %x : tensor<8xf32>
    %true = stablehlo.constant dense<true> : tensor<i1>
    %3 = "stablehlo.if"(%true) ({
      %4 = stablehlo.negate %2 : tensor<8xf32>
      stablehlo.return %4 : tensor<8xf32>
    }, {
      %4 = stablehlo.abs %2 : tensor<8xf32>
      stablehlo.return %4 : tensor<8xf32>
    }) : (tensor<i1>) -> tensor<8xf32>
    stablehlo.return %3 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// What is known at run time only stays, and what is within it is folded.
// CHECK-LABEL: func.func @open(
// CHECK: stablehlo.case
// CHECK-NOT: stablehlo.if
// CHECK: stablehlo.abs
// CHECK: stablehlo.sine
func.func @open(%x: tensor<8xf32>, %which: tensor<i32>) -> tensor<8xf32> {
  %1 = "stablehlo.case"(%which) ({
    %false = stablehlo.constant dense<false> : tensor<i1>
    %3 = "stablehlo.if"(%false) ({
      stablehlo.return %x : tensor<8xf32>
    }, {
      %4 = stablehlo.abs %x : tensor<8xf32>
      stablehlo.return %4 : tensor<8xf32>
    }) : (tensor<i1>) -> tensor<8xf32>
    stablehlo.return %3 : tensor<8xf32>
  }, {
    %2 = stablehlo.sine %x : tensor<8xf32>
    stablehlo.return %2 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
