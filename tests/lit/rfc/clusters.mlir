// The mesh of a function without mesh operations is kept, and a function that names none is given none.
// RUN: mesh-opt %s | filecheck %s
// RUN: mesh-opt %s | mesh-opt --emit-spelling=rfc | filecheck %s --check-prefix=BACK
// RUN: meshbridge partition %s -o - --emit exported | filecheck %s --check-prefix=EXPORTED

mesh.cluster @a(rank = 1, dim_sizes = [2])
mesh.cluster @b(rank = 1, dim_sizes = [4])

// CHECK: func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes {meshbridge.mesh = @a}
// BACK:  func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes {mesh_cluster = @a}
// EXPORTED: func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> {
func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @a } {
  return %arg0 : tensor<8xf32>
}

// CHECK: func.func @nowhere(%arg0: tensor<8xf32>) -> tensor<8xf32> {
// BACK:  func.func @nowhere(%arg0: tensor<8xf32>) -> tensor<8xf32> {
func.func @nowhere(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  return %arg0 : tensor<8xf32>
}

// CHECK: func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
// BACK:  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes {mesh_cluster = @b}
func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @b } {
  %0 = mesh.annotate %arg0 {required = true, sharding = [[0]]} : tensor<8xf32> -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
