// RUN: mesh-opt %s | filecheck %s

mesh.mesh @m0(shape = 2x4)
mesh.mesh @m1(shape = 4)
mesh.mesh @m3(shape = 3)
mesh.mesh @md(shape = 4x?)
mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}

// CHECK-LABEL: func.func @sharding_0(
// CHECK: mesh.sharding @m0 split_axes = {{\[\[}}{{\]\]}} : !mesh.sharding
func.func @sharding_0(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @m0 split_axes = [[]] : !mesh.sharding
  return
}

// CHECK-LABEL: func.func @sharding_1(
// CHECK: mesh.sharding @deep split_axes = {{\[\[}}0, 1], [2{{\]\]}} : !mesh.sharding
func.func @sharding_1(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @deep split_axes = [[0, 1], [2]] : !mesh.sharding
  return
}

// CHECK-LABEL: func.func @sharding_2(
// CHECK: mesh.sharding @m0 split_axes = {{\[\[}}0{{\]\]}} partial = max[1] : !mesh.sharding
func.func @sharding_2(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @m0 split_axes = [[0]] partial = max[1] : !mesh.sharding
  return
}

// CHECK-LABEL: func.func @sharding_3(
// CHECK: mesh.sharding @m0 split_axes = {{\[\[}}0{{\]\]}} halo_sizes = [1, %arg2] : !mesh.sharding
func.func @sharding_3(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @m0 split_axes = [[0]] halo_sizes = [1, %arg2] : !mesh.sharding
  return
}

// CHECK-LABEL: func.func @sharding_4(
// CHECK: mesh.sharding @m1 split_axes = {{\[\[}}], [0{{\]\]}} sharded_dims_offsets = [0, 2, 5, 6, 8] : !mesh.sharding
func.func @sharding_4(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @m1 split_axes = [[], [0]] sharded_dims_offsets = [0, 2, 5, 6, 8] : !mesh.sharding
  return
}

// CHECK-LABEL: func.func @sharding_5(
// CHECK: mesh.sharding @m1 split_axes = {{\[\[}}0{{\]\]}} sharded_dims_offsets = [0, %arg2, 2, %arg2, 4] : !mesh.sharding
func.func @sharding_5(%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding) {
  %sharding = mesh.sharding @m1 split_axes = [[0]] sharded_dims_offsets = [0, %arg2, 2, %arg2, 4] : !mesh.sharding
  return
}
