"""Every rule of the verifier: upstream's by its own words, and the holes that upstream leaves open."""

from __future__ import annotations

import pytest

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import VerifyError, context
from tests.dialect.programs import FORMS, program

CONTEXT = context()
T, T2 = "tensor<4x8xf32>", "tensor<2x8xf32>"


def _sharding(rest: str, mesh: str = "m0") -> str:
    return f"%s = mesh.sharding @{mesh} {rest} : !mesh.sharding"


def _all_reduce(rest: str, types: str = f"{T} -> {T}") -> str:
    return f"%0 = mesh.all_reduce %arg0 on {rest} : {types}"


def _shift(rest: str, types: str = f"{T} -> {T}") -> str:
    return f"%0 = mesh.shift %arg0 on @m0 mesh_axes = [0] {rest} : {types}"


OUT_OF_BOUNDS = '0-based mesh axis index {} is out of bounds. The referenced mesh "m0" is of rank 2.'

UPSTREAM = [
    ("%0:2 = mesh.mesh_shape @nope : index, index", 'Undefined required mesh symbol "nope".'),
    ("%0:2 = mesh.mesh_shape @f : index, index", 'Undefined required mesh symbol "f".'),
    ("%0 = mesh.mesh_shape @m0 axes = [2] : index", OUT_OF_BOUNDS.format(2)),
    ("%0 = mesh.mesh_shape @m0 axes = [-1] : index", OUT_OF_BOUNDS.format(-1)),
    ("%0:2 = mesh.mesh_shape @m0 axes = [0, 0] : index, index", "Mesh axes contains duplicate elements."),
    ("%0 = mesh.mesh_shape @m0 : index", "Unexpected number of results 1. Expected 2."),
    ("%0 = mesh.process_multi_index on @m0 : index", "Unexpected number of results 1. Expected 2."),
    ("%0 = mesh.process_multi_index on @m0 axes = [5] : index", OUT_OF_BOUNDS.format(5)),
    ("%0 = mesh.process_linear_index on @x : index", 'Undefined required mesh symbol "x".'),
    ("%0:2 = mesh.neighbors_linear_indices on @x[%arg1] split_axes = [0] : index, index", 'Undefined required mesh symbol "x".'),
    (_sharding("split_axes = [[0]]", "x"), 'Undefined required mesh symbol "x".'),
    (_sharding("split_axes = [[-1]]"), "mesh axis is expected to be non-negative"),
    (_sharding("split_axes = [[0, 0]]"), "mesh axis duplicated"),
    (_sharding("split_axes = [[0], [0]]"), "mesh axis duplicated"),
    (_sharding("split_axes = [[0]] partial = sum[0]"), "mesh axis duplicated"),
    (
        _sharding("split_axes = [[0]] halo_sizes = [1, 1] sharded_dims_offsets = [0, 1, 2]"),
        "halo sizes and shard offsets are mutually exclusive",
    ),
    (_sharding("split_axes = [[0], [1]] halo_sizes = [1, 1]"), "halo sizes must be specified for all split axes."),
    (
        _sharding("split_axes = [[0]] sharded_dims_offsets = [0, 1, 2, 3, 4]", "md"),
        "sharded dims offsets are not allowed for devices meshes with dynamic shape.",
    ),
    (_sharding("split_axes = [[0]] sharded_dims_offsets = [0, 4]", "m1"), "sharded dims offsets has wrong size."),
    (
        _sharding("split_axes = [[0]] sharded_dims_offsets = [0, 2, 1, 3, 4]", "m1"),
        "sharded dims offsets must be non-decreasing.",
    ),
    (f"%0 = mesh.all_gather %arg0 on @x gather_axis = 0 : {T} -> {T}", 'Undefined required mesh symbol "x".'),
    (f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [2] gather_axis = 0 : {T} -> {T}", OUT_OF_BOUNDS.format(2)),
    (f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 2 : {T} -> {T}", "Gather axis 2 is out of bounds [0, 2)."),
    (
        f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = -1 : {T} -> {T}",
        "Gather axis -1 is out of bounds [0, 2).",
    ),
    (
        f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : {T} -> {T}",
        "Dimension size mismatch for result axis 0. Expected 8, but got 4.",
    ),
    (
        f"%0 = mesh.all_gather %arg0 on @md mesh_axes = [1] gather_axis = 0 : {T} -> tensor<8x8xf32>",
        "Dimension size mismatch for result axis 0. Expected dynamic, but got 8.",
    ),
    (
        f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : {T} -> tensor<8x8xf64>",
        "requires the same element type for all operands and results",
    ),
    (
        f"%0 = mesh.all_gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 : {T} -> tensor<8xf32>",
        "result type has different rank than operands",
    ),
    (
        "%1 = stablehlo.constant dense<0.0> : tensor<f32> "
        "%0 = mesh.all_gather %1 on @m0 mesh_axes = [0] gather_axis = 0 : tensor<f32> -> tensor<f32>",
        "operand #0 must be non-0-ranked.tensor of any type values, but got 'tensor<f32>'",
    ),
    (_all_reduce("@m0 mesh_axes = [0]", f"{T} -> {T2}"), "requires the same shape for all operands and results"),
    (_all_reduce("@m0 mesh_axes = [1, 1]"), "Mesh axes contains duplicate elements."),
    (
        f"%0 = mesh.all_slice %arg0 on @m3 mesh_axes = [0] slice_axis = 0 : {T} -> {T2}",
        "Operand dimension size 4 is not divisible by collective device group size 3 for tensor axis 0.",
    ),
    (
        f"%0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 0 : {T} -> {T}",
        "Dimension size mismatch for result axis 0. Expected 2, but got 4.",
    ),
    (
        f"%0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 0 : {T} -> tensor<2x4xf32>",
        "Dimension size mismatch for result axis 1. Expected 8, but got 4.",
    ),
    (
        f"%0 = mesh.all_slice %arg0 on @md mesh_axes = [1] slice_axis = 0 : {T} -> {T2}",
        "Dimension size mismatch for result axis 0. Expected dynamic, but got 2.",
    ),
    (
        f"%0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 1 : {T} -> {T2}",
        "Dimension size mismatch for result axis 1. Expected 16, but got 8.",
    ),
    (
        f"%0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 1 : {T} -> tensor<4x16xf32>",
        "Dimension size mismatch for result axis 0. Expected 2, but got 4.",
    ),
    (
        f"%0 = mesh.all_to_all %arg0 on @m3 mesh_axes = [0] split_axis = 0 concat_axis = 1 : {T} -> tensor<1x24xf32>",
        "Dimension size mismatch for result axis 0. Expected dynamic, but got 1.",
    ),
    (
        f"%0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [0, 1] : ({T}) -> {T}",
        'In-group device "root" has unexpected multi-index size 2. Expected 1.',
    ),
    (
        f"%0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [2] : ({T}) -> {T}",
        'Out of bounds coordinate 0 for in-group device "root". Got 2, but expected value in the range [0, 1].',
    ),
    (
        f"%0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [1] : ({T}) -> {T2}",
        "failed to verify that all of {input, result} have same shape",
    ),
    (
        f"%0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [1] : ({T}) -> tensor<4x8xf64>",
        "failed to verify that all of {input, result} have same element type",
    ),
    (
        f"%0 = mesh.gather %arg0 on @m0 mesh_axes = [0] gather_axis = 5 root = [1] : ({T}) -> {T}",
        "Gather axis 5 is out of bounds [0, 2).",
    ),
    (
        f"%0 = mesh.gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 root = [3] : ({T}) -> tensor<8x8xf32>",
        'Out of bounds coordinate 0 for in-group device "root". Got 3, but expected value in the range [0, 1].',
    ),
    (
        f"%0 = mesh.recv %arg0 on @m0 mesh_axes = [0] source = [3] : ({T}) -> {T}",
        'Out of bounds coordinate 0 for in-group device "source". Got 3',
    ),
    (
        f"%0 = mesh.send %arg0 on @m0 mesh_axes = [0] destination = [0, 0] : ({T}) -> {T}",
        'In-group device "destination" has unexpected multi-index size 2. Expected 1.',
    ),
    (
        f"%0 = mesh.reduce %arg0 on @m0 mesh_axes = [0] root = [1] : ({T}) -> {T2}",
        "failed to verify that all of {input, result} have same shape",
    ),
    (
        f"%0 = mesh.reduce_scatter %arg0 on @m3 mesh_axes = [0] scatter_axis = 0 : {T} -> {T2}",
        "Operand dimension size 4 is not divisible by collective device group size 3 for tensor axis 0.",
    ),
    (
        f"%0 = mesh.scatter %arg0 on @m0 mesh_axes = [0] scatter_axis = 0 root = [0] : ({T}) -> tensor<2xf32>",
        "failed to verify that all of {input, result} have same rank",
    ),
    (_shift("shift_axis = 1 offset = 1"), "Invalid shift axis 1. It must be one of the grouping mesh axes."),
    (
        _shift("shift_axis = 0 offset = 1", f"{T} -> tensor<4x8xf64>"),
        "requires the same element type for all operands and results",
    ),
    (f'%0 = "mesh.all_gather"(%arg0) {{mesh = @m0, mesh_axes = array<i16>}} : ({T}) -> {T}', "requires attribute 'gather_axis'"),
    (
        f'%0 = "mesh.all_gather"(%arg0) {{mesh = @m0, mesh_axes = [0], gather_axis = 0 : index}} : ({T}) -> {T}',
        "attribute 'mesh_axes' failed to satisfy constraint: i16 dense array attribute",
    ),
]

CLOSED_HOLES = [
    (_sharding("split_axes = [[2]]"), OUT_OF_BOUNDS.format(2)),
    (_sharding("split_axes = [[0]] halo_sizes = [-1, 0]"), "halo sizes are expected to be non-negative or dynamic"),
    (_sharding("split_axes = [[0]] sharded_dims_offsets = [0, 1, 2, 3, 4, 5]", "m1"), "sharded dims offsets has wrong size."),
    (_sharding("split_axes = [[0, 1]] sharded_dims_offsets = [0, 1, 2, 3, 4, 5, 6]"), "sharded dims offsets has wrong size."),
    (
        _sharding("split_axes = [[0]] sharded_dims_offsets = [1, 2, 3, 4, 5]", "m1"),
        "sharded dims offsets of a dimension must start at 0.",
    ),
    (_sharding("split_axes = [[0]] partial = sum[]"), "partial axes are expected to be non-empty"),
    (_sharding("split_axes = [[0]] partial = generic[1]"), "partial type generic is not allowed in a sharding"),
    (
        f"%0 = mesh.broadcast %arg0 on @m0 mesh_axes = [0] root = [-1] : ({T}) -> {T}",
        'Out of bounds coordinate 0 for in-group device "root". Got -1',
    ),
    (
        f'%0 = "mesh.broadcast"(%arg0, %arg1) {{mesh = @m0, mesh_axes = array<i16: 0>, root = array<i64: 0>}} '
        f": ({T}, index) -> {T}",
        '"root" has 0 dynamic entries, but 1 operands for them.',
    ),
    (f"%0 = mesh.all_slice %arg0 on @m0 mesh_axes = [0] slice_axis = 2 : {T} -> {T2}", "Slice axis 2 is out of bounds [0, 2)."),
    (
        f"%0 = mesh.reduce_scatter %arg0 on @m0 mesh_axes = [0] scatter_axis = -1 : {T} -> {T2}",
        "Scatter axis -1 is out of bounds [0, 2).",
    ),
    (
        f"%0 = mesh.all_to_all %arg0 on @m0 mesh_axes = [0] split_axis = 0 concat_axis = 4 : {T} -> {T}",
        "Concat axis 4 is out of bounds [0, 2).",
    ),
    (
        f"%0 = mesh.all_to_all %arg0 on @m3 mesh_axes = [0] split_axis = 0 concat_axis = 0 : {T} -> {T}",
        "Operand dimension size 4 is not divisible by collective device group size 3",
    ),
    (_all_reduce("@m0 mesh_axes = [0] reduction = <bitwise_or>"), "reduction bitwise_or is not defined for element type f32."),
    (_all_reduce("@m0 mesh_axes = [0]", f"{T} -> tensor<4x8xi1>"), "reduction of f32 cannot accumulate in i1."),
    (
        "%0:2 = mesh.neighbors_linear_indices on @m0[%arg1] split_axes = [0] : index, index",
        "Unexpected device multi-index size 1. Expected 2.",
    ),
    (
        "%0:2 = mesh.neighbors_linear_indices on @m0[%arg1, %arg1] split_axes = [2] : index, index",
        OUT_OF_BOUNDS.format(2),
    ),
    ("%0 = mesh.shard_shape 8x? %arg3 %arg1 : index", "Unexpected number of results 1. Expected 2."),
    (f"%0 = mesh.update_halo %arg0 on @m0 split_axes = [[2]] : {T}", OUT_OF_BOUNDS.format(2)),
    (
        f"%0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] halo_sizes = [1] : {T}",
        "halo sizes must be specified for all split axes.",
    ),
    (
        f"%0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] halo_sizes = [2, 2] : {T}",
        "halo sizes [2, 2] of tensor axis 0 leave a core of 0 of 4.",
    ),
    (
        f"%0 = mesh.permute %arg0 on @m0 mesh_axes = [0, 1] target_axes = [1] : {T} -> {T}",
        "target axes are expected to be a permutation of mesh axes.",
    ),
]

ON_TENSORS = [
    ("split_axes = [[], [], [0]]", "m0", "sharding has 3 split axes lists, but the tensor is of rank 2."),
    ("split_axes = [[0]] halo_sizes = [0, 3]", "m0", "halo size 3 of tensor axis 0 exceeds the shard size 2."),
    (
        "split_axes = [[0]] sharded_dims_offsets = [0, 1, 2, 3, 5]",
        "m1",
        "sharded dims offsets of tensor axis 0 end at 5, but the dimension is of size 4.",
    ),
    ("split_axes = [[0]] partial = bitwise_xor[1]", "m0", "reduction bitwise_xor is not defined for element type f32."),
]


def messages(text: str) -> list[str]:
    """The diagnostics of a program, without their places."""
    module = read(text, "v.mlir", CONTEXT)
    return [str(error) for error in verifier.diagnostics(module)]


@pytest.mark.parametrize(("line", "message"), [*UPSTREAM, *CLOSED_HOLES])
def test_broken_rules_are_named_and_placed(line: str, message: str) -> None:
    (found,) = messages(program(line))
    assert message in found
    assert found.startswith("v.mlir:8:")


@pytest.mark.parametrize(("sharding", "mesh", "message"), ON_TENSORS)
def test_shardings_must_fit_their_tensor(sharding: str, mesh: str, message: str) -> None:
    (found,) = messages(program(_sharding(sharding, mesh), f"%0 = mesh.shard %arg0 to %s : {T}"))
    assert found == f"v.mlir:9:10: error: 'mesh.shard' op {message}"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("[]", "rank of mesh is expected to be a positive integer"),
        ("0x4", "dimension size of a mesh is expected to be positive or dynamic"),
    ],
)
def test_meshes(shape: str, message: str) -> None:
    (found,) = messages(f"mesh.mesh @z(shape = {shape})")
    assert found == f"v.mlir:1:1: error: 'mesh.mesh' op {message}"


@pytest.mark.parametrize("line", [line for name, forms in FORMS.items() if name not in ("send", "recv") for line in forms])
def test_every_form_is_valid(line: str) -> None:
    assert messages(program(line)) == []


def test_a_negative_mesh_size() -> None:
    (found,) = messages('"mesh.mesh"() {sym_name = "z", shape = array<i64: 2, -3>} : () -> ()')
    assert found.endswith("dimension size of a mesh is expected to be non-negative or dynamic")


def test_a_scalar_may_have_an_empty_list() -> None:
    lines = (
        _sharding("split_axes = [[]]"),
        "%0 = stablehlo.constant dense<0.0> : tensor<f32>",
        "%1 = mesh.shard %0 to %s : tensor<f32>",
    )
    assert messages(program(*lines)) == []


def test_all_diagnostics_are_reported_at_once() -> None:
    text = program(_all_reduce("@nope"), _sharding("split_axes = [[9]]"))
    module = read(text, "v.mlir", CONTEXT)
    with pytest.raises(VerifyError) as error:
        verifier.verify(module)
    assert [line.split(":")[1] for line in str(error.value).splitlines()] == ["8", "9"]


def test_a_nested_module_has_its_own_meshes() -> None:
    inner = "module { mesh.mesh @inner(shape = 2) func.func @g() { %0 = mesh.process_linear_index on @inner : index return } }"
    assert messages(f"mesh.mesh @outer(shape = 2)\n{inner}") == []
    assert len(messages(f"mesh.mesh @outer(shape = 2)\n{inner.replace('on @inner', 'on @outer')}")) == 1
