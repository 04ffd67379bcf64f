// In a module of one mesh, too, a function comes back with the mesh that it names, or with none.
// RUN: mesh-opt %s | mesh-opt --emit-spelling=rfc | filecheck %s

mesh.cluster @a(rank = 1, dim_sizes = [2])

// CHECK: func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes {mesh_cluster = @a}
func.func @idle(%arg0: tensor<8xf32>) -> tensor<8xf32> attributes { mesh_cluster = @a } {
  return %arg0 : tensor<8xf32>
}

// CHECK: func.func @nowhere(%arg0: tensor<8xf32>) -> tensor<8xf32> {
func.func @nowhere(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  return %arg0 : tensor<8xf32>
}
