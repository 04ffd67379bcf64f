// Both output forms and both ways of writing device groups. Axes are prime factors of the devices, named by radix and stride: an
// axis "2@4" is the digit of a device's number with the stride 4.
// REQUIRES: replica-group-mesh-axes
// RUN: mesh-opt %s --lower-collectives | filecheck %s --check-prefix=EXPORTED
// RUN: mesh-opt %s --lower-collectives=form=local | filecheck %s --check-prefix=LOCAL
// RUN: mesh-opt %s --lower-collectives=replica_groups=mesh-axes | filecheck %s --check-prefix=AXES

mesh.mesh @m(shape = 2x4) {meshbridge.axis_names = ["data", "model"]}

// EXPORTED-LABEL: @one_axis
// EXPORTED: "stablehlo.all_gather"(%{{.*}}) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}>
// LOCAL-LABEL: @one_axis
// LOCAL: "stablehlo.all_gather"(%{{.*}}) <{all_gather_dim = 0 : i64, replica_groups = dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}>
// AXES-LABEL: @one_axis
// AXES: replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "2@4", size = 2>, <name = "2@2", size = 2>, <name = "2@1", size = 2>]>, axes = [#stablehlo.axis_ref<name = "2@2">, #stablehlo.axis_ref<name = "2@1">]>
func.func @one_axis(%x: tensor<2x3xf32>) -> tensor<8x3xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}

// The order in a group is that of mesh_axes.
// EXPORTED-LABEL: @inner_axis_outermost
// EXPORTED: replica_groups = dense<{{\[\[}}0, 4, 1, 5, 2, 6, 3, 7]]> : tensor<1x8xi64>
// AXES-LABEL: @inner_axis_outermost
// AXES: axes = [#stablehlo.axis_ref<name = "2@2">, #stablehlo.axis_ref<name = "2@1">, #stablehlo.axis_ref<name = "2@4">]
func.func @inner_axis_outermost(%x: tensor<2xf32>) -> tensor<16xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [1, 0] gather_axis = 0 : tensor<2xf32> -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// EXPORTED-LABEL: @all_to_all
// EXPORTED: "stablehlo.all_to_all"(%{{.*}}) <{channel_handle = {{.*}}, concat_dimension = 1 : i64, replica_groups = {{.*}}, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x3xf32>) -> tensor<2x12xf32>
func.func @all_to_all(%x: tensor<8x3xf32>) -> tensor<2x12xf32> {
  %0 = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 0 concat_axis = 1 : tensor<8x3xf32> -> tensor<2x12xf32>
  return %0 : tensor<2x12xf32>
}

// The mesh, boundary attributes and annotations are left for whoever writes the program out.
// EXPORTED-LABEL: @boundary
// EXPORTED-SAME: %arg0: tensor<4xf32> {meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<{{\[\[}}0]]>}
// EXPORTED-NEXT: return %arg0
func.func @boundary(%x: tensor<4xf32> {meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[0]]>}) -> tensor<4xf32> {
  %0 = mesh.all_gather %x on @m mesh_axes = [] gather_axis = 0 : tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
