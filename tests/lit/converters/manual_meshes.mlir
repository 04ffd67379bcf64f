// A manual computation may name its mesh, have an equal one in place, or one without axes, and may have nothing passed in or out.
// RUN: meshbridge convert %s --to mesh | meshbridge convert - --to sdy | filecheck %s
// RUN: meshbridge partition %s --emit mesh | filecheck %s --check-prefix=SPLIT

// SPLIT:     mesh.mesh
// SPLIT-NOT: mesh.mesh
sdy.mesh @m = <["x"=2, "y"=4]>

func.func @main(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  // CHECK: in_shardings=[<@m, [{"x"}, {"y"}]>] out_shardings=[<@m, [{"x"}, {"y"}]>] manual_axes={"x", "y"}
  %0 = sdy.manual_computation(%a) in_shardings=[<mesh<["x"=2, "y"=4]>, [{"x"}, {"y"}]>] out_shardings=[<@m, [{"x"}, {"y"}]>]
    manual_axes={"x", "y"} (%b: tensor<4x2xf32>) {
    // SPLIT: stablehlo.tanh %{{.*}} : tensor<4x2xf32>
    %2 = stablehlo.tanh %b : tensor<4x2xf32>
    sdy.return %2 : tensor<4x2xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: in_shardings=[<@m, [{"x"}, {}]>] out_shardings=[<@m, [{}, {}]>] manual_axes={}
  %1 = sdy.manual_computation(%a) in_shardings=[<@m, [{"x"}, {}]>] out_shardings=[<mesh<[]>, [{}, {}]>]
    manual_axes={} (%b: tensor<8x8xf32>) { sdy.return %b : tensor<8x8xf32> } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // CHECK: sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} ()
  sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () { sdy.return } : () -> ()
  // CHECK: sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={"x"} ()
  sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={"x"} () { sdy.return } : () -> ()
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
