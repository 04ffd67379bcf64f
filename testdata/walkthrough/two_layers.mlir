// Two layers and a penalty on the second one's weights, sharded by data and model: docs/architecture.md shows it on its way.
sdy.mesh @mesh = <["data"=2, "model"=2]>

func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                %w1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>},
                %w2: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}) -> (tensor<8x16xf32>, tensor<f32>) {
  %hidden = stablehlo.dot %x, %w1 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %active = call @relu(%hidden) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = stablehlo.dot %active, %w2 : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  %squares = stablehlo.multiply %w2, %w2 : tensor<32x16xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %penalty = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<32x16xf32>, tensor<f32>) -> tensor<f32>
  return %y, %penalty : tensor<8x16xf32>, tensor<f32>
}

func.func private @relu(%a: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<8x32xf32>
  %0 = stablehlo.maximum %a, %zero : tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}
