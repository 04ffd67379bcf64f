// RUN: mesh-opt %s --inline-calls --verify-diagnostics

func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @loop(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @loop(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{calls @loop recursively}}
  %0 = call @loop(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
