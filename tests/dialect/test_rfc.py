"""The RFC's spelling: round trips, what it cannot say, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.dialect.ops import REQUIRED
from meshbridge.mlir import OpError, ParseError, context, ir, walk_all
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


@pytest.mark.parametrize("path", [path for path in WALKTHROUGHS if "materialized" not in path.stem], ids=lambda path: path.stem)
def test_walkthroughs_come_back(path: Path) -> None:
    module = rfc.read(path.read_text(), path.name, CONTEXT)
    text = rfc.write(module)
    again = rfc.read(text, "b.mlir", CONTEXT)
    assert write(again) == write(module)
    assert rfc.write(again) == text


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
    ("%s = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4x8xf32> -> tensor<4x8xf32>", "types collectives by whole tensors"),
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
