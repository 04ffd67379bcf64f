// What cannot be taken as one device's program, and shardings that do not fit it.
// RUN: mesh-opt %s --split-input-file --verify-diagnostics --pass-pipeline='local-program{in-shardings=[[0]];[[1]]}' -o /dev/null

mesh.mesh @m(shape = 2x4)
// expected-error @+1 {{has 1 arguments, but in-shardings has 2 shardings}}
func.func @count(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2)
// expected-error @+1 {{argument 1 has the sharding [[1]]: 0-based mesh axis index 1 is out of bounds}}
func.func @axis(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
// expected-error @+1 {{argument 1 of type index has the sharding [[1]], expected at most 0 lists of axes}}
func.func @scalar(%x: tensor<4xf32>, %y: index) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
// expected-error @+1 {{has argument 0 of type tensor<?xf32>, expected a tensor of static shape, or a scalar}}
func.func @dynamic(%x: tensor<?xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2x?)
// expected-error @+1 {{runs on @m, whose shape is not known; XLA needs one}}
func.func @shape(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  return %y : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2x2)
func.func @device(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{names device 5, expected one of the 4 of @m, from 0}}
  %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 5]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
