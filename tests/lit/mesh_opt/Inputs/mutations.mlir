// A script in the transform dialect's own syntax, as the RFC writes mutations.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%root: !transform.any_op {transform.readonly}) {
    %dots = transform.structured.match ops{["stablehlo.dot_general"]} in %root : (!transform.any_op) -> !transform.any_op
    transform.mesh.mutate %dots, [[0], [], [1]] {index = 0} : !transform.any_op
    // The second product's result along its rows, and its left operand along its columns, where it reads it.
    transform.mesh.mutate %dots result 0, [["0"]] {index = 1} : !transform.any_op
    transform.mesh.mutate %dots operand 0, [[], ["1"]] {index = 1}
    transform.yield
  }
}
