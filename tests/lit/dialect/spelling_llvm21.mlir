// RUN: mesh-opt %s | filecheck %s
// RUN: mesh-opt %s --emit-spelling=llvm21 | filecheck %s --check-prefix=BACK --match-full-lines

mesh.mesh @m(shape = 2x4)

// CHECK-LABEL: func.func @f
// BACK-LABEL: {{.*}}func.func @f{{.*}}
func.func @f(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: mesh.sharding @m split_axes = {{\[\[}}0{{\]\]}} partial = sum[1] : !mesh.sharding
  // BACK: %{{.*}} = mesh.sharding @m split_axes = {{\[\[}}0{{\]\]}} partial =  sum [1] : !mesh.sharding
  %s = mesh.sharding @m split_axes = [[0]] partial =  sum [1] : !mesh.sharding
  // CHECK: mesh.shard %arg0 to
  %0 = mesh.shard %arg0 to %s : tensor<4x8xf32>
  // CHECK: mesh.all_reduce {{.*}} on @m mesh_axes = [1] reduction = <max>
  // BACK: %{{.*}} = mesh.all_reduce {{.*}} on @m mesh_axes = [1] reduction =  max : {{.*}}
  %1 = mesh.all_reduce %0 on @m mesh_axes = [1] reduction =  max : tensor<4x8xf32> -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
