// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

func.func @good(%a: tensor<2xf32>) -> tensor<2xf32> {
  return %a : tensor<2xf32>
}

// -----

func.func @bad(%a: tensor<2xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{type of return operand 0 ('tensor<2xf32>') doesn't match function result type}}
  return %a : tensor<2xf32>
}

// -----

func.func @unparsable(%a: tensor<2xf32>) {
  // expected-error-re @below {{undeclared {{SSA|value}}}}
  "test.op"(%nowhere) : (tensor<2xf32>) -> ()
}
