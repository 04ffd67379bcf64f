"""Reading and printing: round trips, the same IR as MLIR's generic form, exact places of operations and of errors."""

from __future__ import annotations

import re
from io import BytesIO

import pytest
from hypothesis import given

from meshbridge.dialect import verifier
from meshbridge.dialect.assembly import read, split_input, write
from meshbridge.ir.mlir import ParseError, context, ir, source_location, walk_all
from tests.dialect.programs import FORMS, HEADER, program, random_programs

LINES = [pytest.param(line, id=f"{name}-{number}") for name, lines in FORMS.items() for number, line in enumerate(lines)]
CONTEXT = context()


@pytest.mark.parametrize("line", LINES)
def test_each_form_prints_as_it_was_read(line: str) -> None:
    text = program(line)
    assert write(read(text, "a.mlir", CONTEXT)).strip() == text.strip()


@pytest.mark.parametrize("line", LINES)
def test_generic_form_reads_back(line: str) -> None:
    module = read(program(line), "a.mlir", CONTEXT)
    assert write(read(write(module, generic=True), "b.mlir", CONTEXT)) == write(module)


@given(random_programs())
def test_random_programs_round_trip(text: str) -> None:
    module = read(text, "a.mlir", CONTEXT)
    assert verifier.diagnostics(module) == []
    printed = write(module)
    again = read(printed, "b.mlir", CONTEXT)
    assert write(again) == printed
    assert write(again, generic=True) == write(module, generic=True)


def test_upstream_spells_generic_attributes_apart() -> None:
    line = (
        '%0 = "mesh.all_reduce"(%arg0) <{mesh = @m0, mesh_axes = array<i16: 1>, reduction = #mesh<partial max>}> {foo} '
        ": (tensor<4x8xf32>) -> tensor<4x8xf32>"
    )
    module = read(program(line), "a.mlir", CONTEXT)
    (op,) = [op for op in walk_all(module) if op.name == "mesh.all_reduce"]
    assert sorted(op.attributes) == ["foo", "mesh", "mesh_axes", "reduction"]
    assert op.opview.reduction == "max"


@pytest.mark.parametrize("kind", ["reduction = max", "reduction = <max>", "reduction =  < max >"])
def test_reduction_kinds_are_read_in_every_spelling(kind: str) -> None:
    text = program(f"%0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [0] {kind} : tensor<4x8xf32> -> tensor<4x8xf32>")
    assert "reduction = <max> :" in write(read(text, "a.mlir", CONTEXT))


def test_a_sharding_without_lists_is_printed_so_that_upstream_reads_it() -> None:
    text = program("%0 = mesh.sharding @m0 split_axes = [] : !mesh.sharding")
    assert "split_axes = [[]] :" in write(read(text, "a.mlir", CONTEXT))


def test_names_comments_locations_and_regions() -> None:
    text = """
#place = loc("origin.py":7:3)
// mesh.shard is not an operation in a comment
module @named attributes {test.note = "mesh.all_reduce %0 // quoted"} {
  mesh.mesh @m0(shape = 2x4)  // a mesh
  func.func @f(%t: tensor<8xf32>, %c: i1) -> tensor<8xf32> {
    %s = mesh.sharding @m0
      split_axes = [[0,1]]  // over two lines
      : !mesh.sharding loc(#place)
    %r = scf.if %c -> (tensor<8xf32>) {
      %i:2 = mesh.process_multi_index on @m0 : index, index
      %v = mesh.shard %t to %s annotate_for_users : tensor<8xf32>
      "test.use"(%i#1) {mesh.key = 1 : i32, other = #mesh<partial max>} : (index) -> ()
      scf.yield %v : tensor<8xf32>
    } else { %v = mesh.shard %t to %s : tensor<8xf32> scf.yield %v : tensor<8xf32> }
    return %r : tensor<8xf32>
  }
}
"""
    module = read(text, "dir/a b.mlir", CONTEXT)
    places = {}
    for op in walk_all(module):
        places.setdefault(op.name, []).append(source_location(op))
    assert places["mesh.sharding"] == ["origin.py:7:3"]
    assert places["mesh.shard"] == ["dir/a b.mlir:12:12", "dir/a b.mlir:15:19"]
    # Behind a rewritten operation on its line, and on lines below one that spans several.
    assert places["scf.yield"] == ["dir/a b.mlir:14:7", "dir/a b.mlir:15:55"]
    assert places["func.return"] == ["dir/a b.mlir:16:5"]
    printed = write(module, debuginfo=True)
    assert 'loc("origin.py":7:3)' in printed
    assert "%proc_linear_idx#1" in printed
    again = read(printed, "b.mlir", CONTEXT)
    assert [source_location(op) for op in walk_all(again)] == [source_location(op) for op in walk_all(module)]


def test_text_without_a_module_keeps_its_places() -> None:
    module = read("mesh.mesh @m0(shape = 4)\nfunc.func private @f()\n", "two.mlir", CONTEXT)
    assert [source_location(op) for op in walk_all(module)] == ["two.mlir:1:1", "two.mlir:2:1"]


def test_bytecode_is_read() -> None:
    module = read(program(FORMS["all_reduce"][1]), "a.mlir", CONTEXT)
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    assert write(read(buffer.getvalue(), "a.mlirbc", CONTEXT)) == write(module)


def test_long_constants_are_elided_on_request() -> None:
    text = program("%0 = stablehlo.constant dense<[1, 2, 3, 4]> : tensor<4xi32>")
    assert "dense_resource<__elided__>" in write(read(text, "a.mlir", CONTEXT), elide_larger_than=2)


def test_what_does_not_fit_the_form_stays_generic() -> None:
    text = program('%0:2 = "mesh.all_reduce"(%arg0) {mesh = @m0} : (tensor<4x8xf32>) -> (tensor<4x8xf32>, index)')
    assert '"mesh.all_reduce"(%arg0) {mesh = @m0}' in write(read(text, "a.mlir", CONTEXT))


ERRORS = {
    "%0 = mesh.all_reduce %arg0 @m0 : tensor<4x8xf32> -> tensor<4x8xf32>": (32, "expected 'on', found '@m0'"),
    "%0 = mesh.all_reduce %arg0 on @m0 reduction = <most> : tensor<4x8xf32>": (
        52,
        "expected ::mlir::mesh::ReductionKind to be one of: sum",
    ),
    "%0 = mesh.all_reduce %arg0 on @m0 mesh_axes = [0, 99999] : tensor<4x8xf32>": (55, "integer 99999 does not fit 16 bits"),
    "%0 = mesh.all_reduce %argo on @m0 : tensor<4x8xf32> -> tensor<4x8xf32>": (26, "use of undeclared SSA value name"),
    "%0 = mesh.all_reduce %arg1 on @m0 : tensor<4x8xf32> -> tensor<4x8xf32>": (26, "use of value '%arg1' expects different type"),
    "%0 = mesh.all_reduce %arg0 on @m0 : tensor<4x8xg32> -> tensor<4x8xf32>": (52, "expected"),
    "%0 = mesh.all_reduce %arg0 on @m0 : tensor<4x8xf32>": (5, "expected '->', found 'return'"),
    "%0 = mesh.all_reduces %arg0 on @m0 : tensor<4x8xf32>": (10, "custom op 'mesh.all_reduces' is unknown"),
    "%0 = mesh.sharding @m0 split_axes = [[0] : !mesh.sharding": (46, "expected ',', found ':'"),
    "%0 = mesh.shard %arg0 to %arg3 : tensor<4x8xf32)": (52, "expected '>', found ')'"),
    "%0 = mesh.mesh_shape @m0 axes = [0 : index": (40, "expected ',', found ':'"),
    '%0 = "mesh.nothing"(%arg0) : (tensor<4x8xf32>) -> index': (10, "unknown operation 'mesh.nothing'"),
    '"é"() : () -> () %0 = mesh.shard %arg0 %arg3 : tensor<4x8xf32>': (45, "expected 'to', found '%arg3'"),
}


@pytest.mark.parametrize("line", ERRORS)
def test_errors_point_at_the_users_text(line: str) -> None:
    column, message = ERRORS[line]
    with pytest.raises(ParseError) as error:
        read(program(line), "bad.mlir", CONTEXT)
    place = re.match(r"bad\.mlir:(\d+):(\d+): error: (.*)", str(error.value))
    assert place is not None, str(error.value)
    assert message in place.group(3)
    row = HEADER.count("\n") + (3 if "found 'return'" in message else 2)
    assert (int(place.group(1)), int(place.group(2))) == (row, column), str(error.value)


def test_split_input_keeps_line_numbers() -> None:
    parts = split_input("mesh.mesh @a(shape = 2)\n// -----\n\nmesh.mesh @b(shape = 2\n")
    assert len(parts) == 2
    with pytest.raises(ParseError, match=r"s\.mlir:5:1: error: expected '\)'"):
        read(parts[1], "s.mlir", CONTEXT)


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "[" * 100_000, "func.func @f() {" * 5_000, "\0", "\ud800", "module {\n" + "<" * 9999]
)
def test_hostile_text_is_refused_in_place(text: str) -> None:
    with pytest.raises(ParseError, match=r"h\.mlir:\d+:\d+: error: "):
        read(text, "h.mlir", CONTEXT)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ParseError, match=r"h\.mlir:2:3: error: not UTF-8 text"):
        read(b"module {\n  \xff\n}", "h.mlir", CONTEXT)


def test_operation_classes_are_handed_out() -> None:
    module = read(program(FORMS["all_gather"][0]), "a.mlir", CONTEXT)
    (gather,) = [op.opview for op in walk_all(module) if op.name == "mesh.all_gather"]
    assert (gather.mesh, gather.mesh_axes, gather.gather_axis) == ("m0", (1,), 1)
    assert isinstance(module, ir.Module)
