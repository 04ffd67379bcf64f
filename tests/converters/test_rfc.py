"""The RFC's spelling: round trips, what it cannot say, and what contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.dialect.ops import REQUIRED
from meshbridge.ir.mlir import OpError, ParseError, context, ir, walk_all
from meshbridge.partitioner.mesh_spmdization import MeshSpmdization
from meshbridge.upstream.sharding_propagation import ShardingPropagation
from meshbridge_converters import rfc

CONTEXT = context()
TESTDATA = Path(__file__).parents[2] / "testdata"
WALKTHROUGHS = sorted((TESTDATA / "rfc").glob("*.mlir"))
CLUSTER = "mesh.cluster @m(rank = 3, dim_sizes = [2, 2])\n"


def function(*lines: str, cluster: str = CLUSTER) -> str:
    """An RFC module whose function holds `lines`."""
    body = "".join(f"  {line}\n" for line in lines)
    return f"{cluster}func.func @f(%x: tensor<4x8xf32>) attributes {{mesh_cluster = @m}} {{\n{body}  return\n}}\n"


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_walkthroughs_are_valid_mesh_ir(path: Path) -> None:
    module = rfc.read(path.read_text(), path.name, CONTEXT)
    assert module.operation.verify()
    assert verifier.diagnostics(module) == []
    assert not any(op.name.startswith("mhlo.") for op in walk_all(module))
    assert write(read(write(module), "b.mlir", CONTEXT)) == write(module)


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_walkthroughs_come_back(path: Path) -> None:
    module = rfc.read(path.read_text(), path.name, CONTEXT)
    text = rfc.write(module)
    again = rfc.read(text, "b.mlir", CONTEXT)
    assert write(again) == write(module)
    assert rfc.write(again) == text


def layout_free(text: str) -> str:
    """`text` without white space and what newer MLIR adds of its own accord: the braces of the module and of properties."""
    text = re.sub(r"<\{(.*?)\}> \{", r"{\1, ", text)
    return re.sub(r"\s", "", re.sub(r"^module \{(.*)\}\s*$", r"\1", text, flags=re.S))


def test_the_materialized_walkthrough_comes_back_as_it_is() -> None:
    source = (TESTDATA / "rfc/mlp_1d_weight_stationary_materialized.mlir").read_text()
    assert layout_free(rfc.write(rfc.read(source, "a.mlir", CONTEXT))) == layout_free(source)


PARTITIONED = """
mesh.mesh @m(shape = 2x2)
func.func @main(%x: tensor<4x8xf32>, %y: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %s = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<4x8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%0 init: %zero) applies stablehlo.BODY across dimensions = [1]
    : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %i = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %w:2 = stablehlo.while(%iv = %i, %acc = %b) : tensor<i32>, tensor<4x8xf32>
    cond {
      %c = stablehlo.compare LT, %iv, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %k = stablehlo.add %iv, %one : tensor<i32>
      %t = stablehlo.dot_general %acc, %y, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      stablehlo.return %k, %t : tensor<i32>, tensor<4x8xf32>
    }
  %u = mesh.shard %w#1 to %s : tensor<4x8xf32>
  return %u, %r : tensor<4x8xf32>, tensor<4xf32>
}
"""


def materialized(text: str) -> ir.Module:
    """The partitioned program, with the sharding of every result."""
    module = read(text, "a.mlir", CONTEXT)
    for step in (ShardingPropagation(), MeshSpmdization(materialized=True)):
        step.run(module)
    return module


@pytest.mark.parametrize(("body", "initial"), [("add", "0.0"), ("maximum", "0xFF800000")])
def test_partitioned_programs_come_back(body: str, initial: str) -> None:
    module = materialized(PARTITIONED.replace("BODY", body).replace("dense<0.0>", f"dense<{initial}>"))
    text = rfc.write(module)
    assert "tensor<4xf32, #mesh.shard<[[0], [1]]>>" in text
    assert "mhlo.while" in text
    again = rfc.read(text, "b.mlir", CONTEXT)
    assert write(again) == write(module)
    assert rfc.write(again) == text


def test_shards_with_padding_are_refused() -> None:
    held = "meshbridge.global = tensor<7xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[0]]>"
    text = f"mesh.mesh @m(shape = 2)\nfunc.func @f(%x: tensor<4xf32> {{{held}}}) {{\n  return\n}}"
    with pytest.raises(OpError, match="holds shards of tensor<7xf32> that make up tensor<8xf32>"):
        rfc.write(read(text, "a.mlir", CONTEXT))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>",
            "its operand is split along",
        ),
        ("mesh.all_reduce %x on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>", "its operand is partial along"),
        ("mesh.all_reduce %x on @m mesh_axes = [] : tensor<4xf32> -> tensor<4xf64>", "accumulates in another element type"),
        ("mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<4xf32> -> tensor<4xf32>", "has no word for it"),
        ("stablehlo.slice %x [0:2] : (tensor<4xf32>) -> tensor<2xf32>", "nothing gives the sharding of its result"),
        (
            "stablehlo.slice %x [0:2] {meshbridge.result_split_axes = [#mesh.axisarray<[[0]]>]}"
            " : (tensor<4xf32>) -> tensor<2xf32>",
            "on global tensors, cannot say",
        ),
    ],
)
def test_what_the_materialized_form_cannot_say_is_named(line: str, message: str) -> None:
    held = "meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m, meshbridge.split_axes = #mesh.axisarray<[[0]]>"
    text = f"mesh.mesh @m(shape = 2x2)\nfunc.func @f(%x: tensor<4xf32> {{{held}}}) {{\n  %0 = {line}\n  return\n}}"
    module = read(text, "a.mlir", CONTEXT)
    with pytest.raises(OpError, match=rf"a\.mlir:3:8: error: .*{message}"):
        rfc.write(module)


def test_unknown_sizes_are_dynamic() -> None:
    module = rfc.read("mesh.cluster @a(rank = 2)\nmesh.cluster @b(rank = 3, dim_sizes = [0, 4])\n", "a.mlir", CONTEXT)
    text = write(module)
    assert "mesh.mesh @a(shape = ?x?)" in text
    assert "mesh.mesh @b(shape = ?x4x?)" in text
    assert "mesh.cluster @a(rank = 2)\n" in rfc.write(module)
    assert "mesh.cluster @b(rank = 3, dim_sizes = [0, 4])" in rfc.write(module)


AXES = st.permutations([0, 1, 2]).flatmap(
    lambda order: st.tuples(*[st.integers(0, 3)] * 3).map(
        lambda cuts: [list(order[start:end]) for start, end in zip([0, *sorted(cuts)], sorted(cuts), strict=False)]
    )
)


@given(st.lists(st.tuples(AXES, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_random_annotations_come_back(annotations: list[tuple[list[list[int]], bool, bool]]) -> None:
    lines: list[str] = []
    for number, (lists, required, as_result) in enumerate(annotations):
        while lists and not lists[-1]:
            lists = lists[:-1]
        result = "" if as_result else "as_result = false, "
        attributes = f"{result}required = {str(required).lower()}, sharding = {lists}"
        lines.append(f"%{number} = mesh.annotate %x {{{attributes}}} : tensor<4x8xf32> -> tensor<4x8xf32>")
    module = rfc.read(function(*lines), "a.mlir", CONTEXT)
    assert verifier.diagnostics(module) == []
    printed = rfc.write(module)
    assert [line.strip().replace("%arg0", "%x") for line in printed.splitlines() if "annotate" in line] == lines
    shards = [op for op in walk_all(module) if op.name == "mesh.shard"]
    assert [ir.BoolAttr(op.attributes[REQUIRED]).value for op in shards] == [required for _, required, _ in annotations]


def test_indices_come_back() -> None:
    text = function("%0 = mesh.idx {axis = 1 : index} : index", "%1 = mesh.size {axis = 0 : index} : index")
    module = rfc.read(text, "a.mlir", CONTEXT)
    assert "mesh.process_multi_index on @m axes = [1] : index" in write(module)
    assert "mesh.mesh_shape @m axes = [0] : index" in write(module)
    assert "mesh.idx {axis = 1 : index} : index" in rfc.write(module)
    assert "mesh.size {axis = 0 : index} : index" in rfc.write(module)


REFUSED = [
    ("%s = mesh.sharding @m split_axes = [[0]] halo_sizes = [1, 1] : !mesh.sharding", "has no halo sizes"),
    ("%s = mesh.sharding @m split_axes = [[0]] partial = max[1] : !mesh.sharding", "has no partial max"),
    ("%s = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4x8xf32> -> tensor<4x8xf32>", "types collectives by global tensors"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_the_rfc_cannot_say_is_named(line: str, message: str) -> None:
    text = f"mesh.mesh @m(shape = 2x2)\nfunc.func @f(%x: tensor<4x8xf32>) {{\n  {line}\n  return\n}}"
    with pytest.raises(OpError, match=rf"a\.mlir:3:8: error: .*{message}"):
        rfc.write(read(text, "a.mlir", CONTEXT))


WRONG = [
    ("%0 = mesh.annotate %x {sharding = 3} : tensor<4x8xf32> -> tensor<4x8xf32>", "has an attribute of the wrong kind"),
    (
        '%0 = mesh.all_reduce %x {mesh_axis = [0], reduction = "most"} : tensor<4x8xf32> -> tensor<4x8xf32>',
        "unknown reduction 'most'",
    ),
    ("%0 = mesh.local_split %x {sharding = [[], [2]]} : tensor<4x8xf32> -> tensor<4x8xf32>", "does not fit its operand|computes"),
    (
        "%0 = mesh.all_gather %x {mesh_axis = [[0]], tensor_axis = [1]} : tensor<4x8xf32> -> tensor<8x8xf32>",
        "names the tensor axes",
    ),
    ("%0 = mesh.idx : index", "requires attribute 'axis'"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_contradictions_are_named_and_placed(line: str, message: str) -> None:
    with pytest.raises(OpError, match=rf"a\.mlir:3:8: error: .*(?:{message})"):
        rfc.read(function(line), "a.mlir", CONTEXT)


def test_an_encoding_over_an_axis_that_the_mesh_lacks() -> None:
    text = function('%0 = "test.make"() : () -> tensor<4x8xf32, #mesh.shard<[[7]]>>')
    with pytest.raises(OpError, match="is sharded along mesh axes \\[7\\], but @m is of rank 3"):
        rfc.read(text, "a.mlir", CONTEXT)


def test_syntax_errors_are_placed() -> None:
    with pytest.raises(ParseError, match=r"a\.mlir:1:36: error: expected '=', found '\)'"):
        rfc.read("mesh.cluster @m(rank = 1, dim_sizes)", "a.mlir", CONTEXT)
    assert isinstance(CONTEXT, ir.Context)
