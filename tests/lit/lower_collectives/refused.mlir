// Programs that no device group can execute coherently, each refused where it says so.
// RUN: mesh-opt %s --lower-collectives --split-input-file --verify-diagnostics -o /dev/null

mesh.mesh @m(shape = 2x4)
func.func @send_without_recv(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{'mesh.send' op has no mesh.recv}}
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @recv_of_another_type(%x: tensor<3xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'mesh.send' op has no mesh.recv}}
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  %1 = mesh.recv %y on @m mesh_axes = [1] source = [2] : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @second_recv(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  %1 = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<3xf32>) -> tensor<3xf32>
  // expected-error @+1 {{'mesh.recv' op has no mesh.send}}
  %2 = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @from_anywhere(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  // expected-error @+1 {{'mesh.recv' op names no source}}
  %1 = mesh.recv %x on @m mesh_axes = [1] : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @deadlock(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{'mesh.recv' op is used before the matching mesh.send}}
  %0 = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<3xf32>) -> tensor<3xf32>
  %1 = stablehlo.add %0, %0 : tensor<3xf32>
  %2 = mesh.send %1 on @m mesh_axes = [1] destination = [2] : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @root_given_by_a_constant(%x: tensor<3xf32>) -> tensor<3xf32> {
  %seven = arith.constant 7 : index
  // expected-error @+1 {{'mesh.broadcast' op coordinate 0 of root must be in [0, 4), got 7}}
  %0 = mesh.broadcast %x on @m mesh_axes = [1] root = [%seven] : (tensor<3xf32>, index) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @bits_of_floats(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{'mesh.all_reduce' op reduction bitwise_or is not defined for element type f32}}
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = bitwise_or : tensor<3xf32> -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @generic(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{reduction 'generic' has no body that could run}}
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = generic : tensor<3xf32> -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

mesh.mesh @m(shape = 2x256)
func.func @divisor_too_large(%x: tensor<3xi8>) -> tensor<3xi8> {
  // expected-error @+1 {{reduction 'average' over 256 devices: i8 cannot hold that divisor}}
  %0 = mesh.all_reduce %x on @m mesh_axes = [1] reduction = average : tensor<3xi8> -> tensor<3xi8>
  return %0 : tensor<3xi8>
}

// -----

mesh.mesh @m(shape = 2x?)
func.func @unknown_size(%x: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error @+1 {{'mesh.all_gather' op runs on @m, whose shape is not known}}
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<?xf32> -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @unknown_use() {
  %0 = mesh.process_linear_index on @m : index
  // expected-error @+1 {{'test.use' op computes with a scalar, and has no form in StableHLO that could}}
  "test.use"(%0) : (index) -> ()
  return
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @halo_of_unknown_size(%x: tensor<8xf32>, %n: i64) -> tensor<8xf32> {
  // expected-error @+1 {{'mesh.update_halo' op needs constant halo sizes}}
  %0 = mesh.update_halo %x on @m split_axes = [[1]] halo_sizes = [1, %n] : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @shard_of_unknown_size(%n: index) -> index {
  %s = mesh.sharding @m split_axes = [[1]] : !mesh.sharding
  // expected-error @+1 {{'mesh.shard_shape' op has a dimension `?` whose size nothing gives}}
  %0 = mesh.shard_shape ? %s %n : index
  return %0 : index
}

// -----

func.func @scalar_argument(%n: index) {
  // expected-error @+1 {{'test.use' op computes with a scalar, and has no form in StableHLO that could}}
  "test.use"(%n) : (index) -> ()
  return
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @bit_as_a_number() -> i32 {
  %0 = mesh.process_linear_index on @m : index
  %1 = arith.cmpi eq, %0, %0 : index
  // expected-error @+1 {{'arith.extsi' op computes with i1 as with a number}}
  %2 = arith.extsi %1 : i1 to i32
  return %2 : i32
}

// -----

mesh.mesh @m(shape = 2x4)
func.func @tensor_of_unknown_size(%x: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error @+1 {{'mesh.all_gather' op moves a tensor<?xf32>, whose shape is not known; XLA needs one}}
  %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<?xf32> -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
