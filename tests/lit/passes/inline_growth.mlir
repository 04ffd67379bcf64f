// RUN: mesh-opt %s --inline-calls --verify-diagnostics

// Each function calls the next one twice: inlined, the program has a billion ops and more.

func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f0(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @f0(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f1(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f1(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f1(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f2(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f2(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f2(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f3(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f3(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f3(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f4(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f4(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f4(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f5(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f5(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f5(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f6(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f6(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f6(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f7(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f7(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f7(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f8(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f8(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f8(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f9(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f9(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f9(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f10(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f10(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f10(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f11(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f11(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f11(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f12(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f12(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f12(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{is in @f12, which has 1,310,717 ops with all calls inlined, expected at most 1,000,000}}
  %0 = call @f13(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f13(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f13(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f14(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f14(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f14(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f15(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f15(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f15(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f16(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f16(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f16(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f17(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f17(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f17(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f18(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f18(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f18(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f19(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f19(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f19(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f20(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f20(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f20(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f21(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f21(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f21(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f22(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f22(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f22(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f23(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f23(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f23(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f24(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f24(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f24(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f25(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f25(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f25(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f26(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f26(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f26(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f27(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f27(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f27(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f28(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f28(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f28(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f29(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f29(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f29(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f30(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f30(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @f30(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
