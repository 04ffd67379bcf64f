// RUN: mesh-opt %s --cse | filecheck %s
// Operations without effects are erased where nobody uses them: LLVM's `--cse` does so too. A message stays, and so does what
// says how callers pass an argument.

mesh.mesh @m(shape = 2)

// CHECK-LABEL: func.func @f(
// CHECK-NEXT:    mesh.sharding
// CHECK-NEXT:    mesh.send
// CHECK-NEXT:    mesh.recv
// CHECK-NEXT:    mesh.shard
// CHECK-NEXT:    return
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mesh.all_reduce %a on @m : tensor<4xf32> -> tensor<4xf32>
  %1 = mesh.all_reduce %0 on @m : tensor<4xf32> -> tensor<4xf32>
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %t = mesh.sharding @m split_axes = [[]] : !mesh.sharding
  %2 = mesh.send %a on @m mesh_axes = [0] destination = [1] : (tensor<4xf32>) -> tensor<4xf32>
  %3 = mesh.recv %a on @m mesh_axes = [0] source = [0] : (tensor<4xf32>) -> tensor<4xf32>
  %4 = mesh.shard %a to %s : tensor<4xf32>
  %5 = mesh.shard %1 to %t annotate_for_users : tensor<4xf32>
  %6 = mesh.update_halo %a on @m split_axes = [[0]] halo_sizes = [1, 1] : tensor<4xf32>
  %7 = mesh.process_linear_index on @m : index
  %8 = mesh.broadcast %a on @m mesh_axes = [0] root = [1] : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
