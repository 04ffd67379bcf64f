"""Bad input: exactly one diagnostic on standard error, exit status 1, no output file, no traceback."""

from __future__ import annotations

import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jax import export

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ParseError, VerifyError, ir
from meshbridge.read import formats
from meshbridge.tools import cli, console, crash_guard, mesh_opt

SDY = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<{}>}}) -> tensor<8x16xf32> {{
  %0 = stablehlo.add %a, %a : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}}
"""

MESH = """mesh.mesh @m(shape = 2x4)
func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {{
  %s = mesh.sharding @m split_axes = {} : !mesh.sharding
  %0 = mesh.shard %a to %s : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}}
"""

BAD = {
    "not MLIR": (b"a poem\nof two lines", "input:1:1: error: custom op 'a' is unknown"),
    "empty": (b" \n", "input: error: the input is empty"),
    "neither text nor a known binary": (b"caf\xe9", "input: error: unknown kind of input"),
    "zeros": (b"\0" * 400, "input: error: unknown kind of input"),
    "another program": (b"\x7fELF\x02\x01\x01" + bytes(range(256)), "input: error: unknown kind of input"),
    "endless nesting": (b"module {" * 5000, "input:1:2056: error: more than 256 brackets are open"),
    "a negative number of a result, over which sdy's parser ends the process": (
        b"func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n  %0 = stablehlo.tanh %a {sdy.propagation_edges = "
        b'#sdy.propagation_edges<[{step-1 = [{"x" = operand-0 -> [result--1]}]}]>} : tensor<8xf32>\n'
        b"  return %0 : tensor<8xf32>\n}",
        "input:2:107: error: expected the number of an operand or result, found a negative one",
    ),
    "does not verify": (
        b"func.func @main(%a: tensor<8xf32>) -> tensor<9xf32> {\n  return %a : tensor<8xf32>\n}",
        "input:2:3: error: type of return operand 0",
    ),
    "no function": (b"module {}", "input: error: expected a function 'main' or exactly one public function, found 0"),
    "endless recursion": (
        b"func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
        b"  %0 = call @main(%a) : (tensor<8xf32>) -> tensor<8xf32>\n  return %0 : tensor<8xf32>\n}",
        "input:2:8: error: 'func.call' op calls @main recursively",
    ),
    "unknown mesh": (SDY.format('@other, [{"x"}, {}]').encode(), "input:2:1: error: 'func.func' op arg 0 - unknown mesh: @other"),
    "unknown sdy axis": (SDY.format('@mesh, [{"z"}, {}]').encode(), "input:2:1: error: 'func.func' op arg 0 - unknown axis name"),
    "sdy axis twice": (
        SDY.format('@mesh, [{"x"}, {"x"}]').encode(),
        "input:2:1: error: 'func.func' op arg 0 - duplicate axis ref",
    ),
    "sdy rank": (
        SDY.format('@mesh, [{"x"}]').encode(),
        "input:2:1: error: 'func.func' op arg 0 - sharding doesn't match tensor rank",
    ),
    "too many devices": (
        SDY.format('@mesh, [{"x"}, {}]').replace('"y"=4', '"y"=100000000000').encode(),
        "input:1:1: error: 'mesh.mesh' op has 200000000000 devices, expected at most 1048576 to partition a program on",
    ),
    "unknown mesh axis": (
        MESH.format("[[7]]").encode(),
        "input:3:8: error: 'mesh.sharding' op 0-based mesh axis index 7 is out of",
    ),
    "mesh axis twice": (MESH.format("[[0], [0]]").encode(), "input:3:8: error: 'mesh.sharding' op "),
    "bad mesh shape": (b"mesh.mesh @m(shape = banana)", "input:1:22: error: "),
}


def fails_with(capsys: pytest.CaptureFixture[str], status: int, expected: str, output: Path | None = None) -> None:
    """Usage errors, which speak of the command before they say what is wrong, end with a status of their own."""
    captured = capsys.readouterr()
    assert status in (1, console.USAGE)
    if expected.startswith(("mesh-opt", "meshbridge")):
        assert status == console.USAGE
    assert captured.err.count("error:") == 1, captured.err
    assert captured.err.startswith(expected), captured.err
    assert "Traceback" not in captured.err
    assert "internal error" not in captured.err
    assert output is None or list(output.parent.iterdir()) == [output.parent / "input"]


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to stand in; the path of the bad input in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "input"


@pytest.mark.parametrize("name", BAD)
def test_partition(name: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, expected = BAD[name]
    bad.write_bytes(data)
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("no function",)])
def test_run(name: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, expected = BAD[name]
    bad.write_bytes(data)
    fails_with(capsys, cli.main(["run", "input"]), expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nonsense", "input"], "mesh-opt: error: unrecognized arguments: --nonsense"),
        (["--sharding-propagatio", "input"], "mesh-opt: error: unrecognized arguments: --sharding-propagatio"),
        (["--pass-pipeline=nonsense", "input"], "error: unknown pass 'nonsense', expected one of "),
        (["--pass-pipeline=builtin.module(inline-calls", "input"], "error: expected 'pass' or 'pass{option=value}'"),
        (["--inline-calls=depth=3", "input"], "error: pass 'inline-calls' has no option 'depth', "),
        (["--lower-collectives=form=sideways", "input"], "error: option 'form' of pass 'lower-collectives' cannot be 'sideways'"),
        (["--inline-calls", "--pass-pipeline=inline-calls", "input"], "mesh-opt: error: pass flags and --pass-pipeline exclude"),
        (["--emit-spelling=klingon", "input"], "mesh-opt: error: unknown format 'klingon', expected one of "),
        (["nowhere.mlir"], "nowhere.mlir: error: No such file or directory"),
        (["input", "-o", "nowhere/out.mlir"], "nowhere/out.mlir: error: No such file or directory"),
        (["."], ".: error: Is a directory"),
    ],
)
def test_mesh_opt_command_line(arguments: list[str], expected: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text("func.func @main() { return }")
    fails_with(capsys, mesh_opt.main(arguments), expected, bad.parent / "out.mlir")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "meshbridge: error: the following arguments are required: COMMAND"),
        (["divide", "input"], "meshbridge: error: argument COMMAND: invalid choice: 'divide'"),
        (["partition"], "meshbridge partition: error: the following arguments are required: input"),
        (["partition", "input", "--emit", "poem"], "meshbridge partition: error: argument --emit: invalid choice: 'poem'"),
        (["partition", "input", "--fast"], "meshbridge partition: error: unrecognized arguments: --fast"),
        (["partition", "input", "-o", "out.jax_export"], "input: error: a jax.export artifact is only made from one"),
        (["run", "input", "--devices", "0"], "meshbridge run: error: argument --devices: expected a positive number, found '0'"),
        (["run", "input", "--inputs", "input"], "input: error: not an archive of arrays"),
        (["reshard", "--shape", "8", "--mesh", "2", "--from", "[[0]]", "--to", "[[]]"], "error: expected a shape such as"),
        (["run", "input", "--seed", "1", "--inputs", "x.npz"], "meshbridge run: error: argument --inputs: not allowed with"),
    ],
)
def test_meshbridge_command_line(arguments: list[str], expected: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text("func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
    fails_with(capsys, cli.main(arguments), expected, bad.parent / "out.mlir")


NEAR = [
    (mesh_opt.main, ["--sharding-propagatio", "input"], "--sharding-propagatio; did you mean '--sharding-propagation'?"),
    (mesh_opt.main, ["--pass-pipeline=legalise", "input"], "; did you mean 'legalize'?"),
    (mesh_opt.main, ["--legalize=batch-lookup", "input"], "; did you mean 'batch-lookups'?"),
    (mesh_opt.main, ["--mlir-print-ir-after=legalise", "input"], "unknown pass 'legalise'; did you mean 'legalize'?"),
    (mesh_opt.main, ["--emit-spelling=mlr", "input"], "; did you mean 'mlir'?"),
    (cli.main, ["partitoin", "input"], "; did you mean 'partition'?"),
    (cli.main, ["report", "input", "--suggst=3"], "report: error: unrecognized arguments: --suggst=3; did you mean '--suggest'?"),
    (cli.main, ["partition", "input", "--emit", "locl"], "; did you mean 'local'?"),
    (cli.main, ["partition", "input", "--machine", "h10"], "or the path of a .toml file; did you mean 'h100'?"),
    (cli.main, ["partition", "input", "--machine", "neutrall"], "; did you mean 'neutral'?"),
    (cli.main, ["search", "input", "--machine", "v5pe:4x4x4"], "; did you mean 'v5p'?"),
]
"""Commands with a word that is nearly right, and the end of what they say."""


@pytest.mark.parametrize(("main", "arguments", "expected"), NEAR)
def test_near_names(
    main: Callable[[list[str]], int], arguments: list[str], expected: str, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad.write_text("func.func @main() { return }")
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(f"{expected}\n")


@pytest.mark.parametrize("mesh", ["@m", 'mesh<["data"=2, "model"=4]>'])
def test_an_unknown_axis_lists_those_that_exist(mesh: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text(
        'sdy.mesh @m = <["data"=2, "model"=4]>\n'
        f'func.func @main(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<{mesh}, [{{"modle"}}]>}}) -> tensor<8xf32> {{\n'
        "  return %a : tensor<8xf32>\n}"
    )
    place = "input:2:1: error: 'func.func' op arg 0"
    expected = f"{place} - unknown axis name: \"modle\"\n  hint: the axes are data, model; did you mean 'model'?"
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


def test_more_devices_than_there_are(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text(SDY.format('@mesh, [{"x"}, {}]').replace('"y"=4', '"y"=40'))
    fails_with(capsys, cli.main(["run", "input"]), "input: error: mesh @mesh needs 80 devices, there are 8")


def test_every_cut_of_every_binary_format(exported: export.Exported) -> None:
    """A file that is cut off anywhere is noticed in process, with a diagnostic that names it."""
    ctx = mlir.context()
    module = formats.unpack(exported, ctx).module
    for data in (mlir.to_bytecode(module), exported.mlir_module_serialized, bytes(exported.serialize())):
        for length in {*range(0, len(data), 61), *range(64), *range(len(data) - 16, len(data))}:
            with pytest.raises(ParseError, match=r"^cut(:\d+:\d+)?: error: "):
                formats.read(bytes(data[:length]), "cut", ctx)


def run_command(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshbridge.tools.mesh_opt", str(path), "-o", str(path.parent / "out.mlir")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_damaged_bytecode_never_crashes_the_command(exported: export.Exported, tmp_path: Path) -> None:
    """MLIR's reader can crash on bytecode with wrong bytes in it; the command must say so all the same."""
    with mlir.context():
        module = ir.Module.parse(exported.mlir_module())
    generator = random.Random(0)
    for original in (mlir.to_bytecode(module), exported.mlir_module_serialized):
        for _ in range(4):
            data = bytearray(original)
            for _ in range(8):
                data[generator.randrange(4, len(data))] = generator.randrange(256)
            path = tmp_path / "input"
            path.write_bytes(data)
            done = run_command(path)
            assert done.returncode == 1
            assert done.stderr.startswith((f"{path}", "/", "<")), done.stderr
            assert done.stderr.count("error:") == 1, done.stderr
            assert list(tmp_path.iterdir()) == [path]


CRASHES = {
    "abort": "os.abort()",
    "segmentation fault": "ctypes.string_at(8)",
    "stack overflow": "ir.Module.parse('module attributes {a = ' + '[' * 10**6, ir.Context())",
    "endless loop": "sum(itertools.repeat(0))",
    "much said before": "(os.write(2, b'terminate called'), os.abort())",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a crash is a crash")
@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_of_the_reader_is_a_diagnostic(name: str, tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(
        "import ctypes, dataclasses, itertools, os, sys\n"
        "from meshbridge.ir.mlir import ir\n"
        "from meshbridge.read import formats\n"
        "from meshbridge.tools import crash_guard, mesh_opt\n"
        "crash_guard.READING_SECONDS = 1\n"
        f"formats.BYTECODE = dataclasses.replace(formats.BYTECODE, read=lambda *rest: {CRASHES[name]})\n"
        "sys.exit(mesh_opt.main([sys.argv[1]]))\n"
    )
    (tmp_path / "input").write_bytes(mlir.to_bytecode(mlir.parse("module {}", name, mlir.context())))
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "input")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path / 'input'}: error: damaged input: MLIR's reader crashes or hangs on it\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is nothing to take back")
def test_reading_leaves_signals_and_standard_error_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    faulthandler.enable()
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with crash_guard.guarded("input", 0):
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    assert before == [signal.getsignal(number) for number in signal.valid_signals()]
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


CALL = b'func.func @main() {\n  "foo.bar"() {name = 7 : i64} : () -> ()\n  return\n}'
UNREADABLE = {
    "a location as an attribute": (CALL.replace(b"7 : i64", b'loc("a.py":1:2)'), "the attribute 'name' is a source location"),
    "a location by its name": (
        b'#loc1 = loc("a.py":1:2)\n' + CALL.replace(b"7 : i64", b"#loc1"),
        "the attribute 'name' is a source location",
    ),
    "a name that is not UTF-8": (CALL.replace(b"name", rb'"\80"'), 'the string "\\80" is not UTF-8'),
}
"""What ends the process, or an exception, where the bindings read it: it has to be found before."""


@pytest.mark.parametrize("as_bytecode", [False, True])
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_the_bindings_cannot_read_is_a_diagnostic(name: str, as_bytecode: bool, tmp_path: Path) -> None:
    data, expected = UNREADABLE[name]
    if as_bytecode:
        data = mlir.to_bytecode(mlir.parse(data.decode(), name, mlir.context()))
    (tmp_path / "input").write_bytes(data)
    done = run_command(tmp_path / "input")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path / 'input'}: error: {expected}"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


DAMAGED = {
    "an operation's name": (b"bar", b"b\xffr"),
    "an attribute's name": (b"name", b"n\xffme"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_names_that_are_not_utf8_in_bytecode(name: str, tmp_path: Path) -> None:
    before, after = DAMAGED[name]
    data = mlir.to_bytecode(mlir.parse(CALL.decode(), name, mlir.context()))
    assert before in data
    (tmp_path / "input").write_bytes(data.replace(before, after))
    done = run_command(tmp_path / "input")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path / 'input'}: error: "), done.stderr
    assert re.search("damaged input|is not UTF-8", done.stderr)
    assert done.stderr.count("error:") == 1


def test_text_that_looks_like_a_location_is_text(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(CALL.replace(b"7 : i64", b'"of = loc(x) and #loc1 = #loc2", other = 1'))
    done = run_command(tmp_path / "input")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mesh_of_unknown_sizes_is_refused(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text(MESH.format("[[0], [1]]").replace("2x4", "?x4").replace("{{", "{").replace("}}", "}"))
    expected = "input:2:1: error: 'func.func' op is to be partitioned on the mesh @m of shape ?x4, expected known sizes"
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


CARRIED = {
    "axis names of another kind": ('@m(shape = 2x4) {meshbridge.axis_names = [i64, "b"]}', "an array of strings, found [i64"),
    "an axis name too few": ('@m(shape = 2x4) {meshbridge.axis_names = ["a"]}', "does not fit the operation"),
    "sub-axes that are not numbers": ("@m(shape = 2x4) {meshbridge.axis_digits = [1]}", "an array of integers, found [1"),
    "a digit too few": ("@m(shape = 2x4) {meshbridge.axis_digits = array<i64: 1>}", "does not fit the operation"),
    "an axis without digits": ("@m(shape = 2x4) {meshbridge.axis_digits = array<i64: 2, 0>}", "does not fit the operation"),
    "a name too many for axes of several digits": (
        '@m(shape = 2x4) {meshbridge.axis_digits = array<i64: 2>, meshbridge.axis_names = ["a", "b"]}',
        "does not fit the operation",
    ),
    "a device twice": ("@m(shape = 2) {meshbridge.device_ids = array<i64: 1, 1>}", "does not fit the operation"),
}


@pytest.mark.parametrize("name", CARRIED)
def test_what_discardable_attributes_carry_is_checked(name: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mesh, expected = CARRIED[name]
    bad.write_text(f"mesh.mesh {mesh}\nfunc.func @main() {{\n  return\n}}")
    assert cli.main(["convert", "input", "--to", "mesh", "-o", "out.mlir"]) == 1
    found = capsys.readouterr().err
    assert found.startswith("input:1:1: error: 'mesh.mesh' op attribute 'meshbridge."), found
    assert expected in found


@pytest.mark.parametrize("name", CARRIED)
def test_so_it_is_of_modules_in_memory(name: str) -> None:
    mesh, expected = CARRIED[name]
    module = assembly.read(f"mesh.mesh {mesh}\nfunc.func @main() {{\n  return\n}}", "input", mlir.context())
    with pytest.raises(VerifyError, match=re.escape(expected)):
        meshbridge.partition(module)


def test_a_sharding_option_names_axes_of_the_mesh(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = MESH.format("[[0], [1]]").replace("  return", "  %1 = stablehlo.sine %0 {OPTION} : tensor<8x16xf32>\n  return")
    bad.write_text(program.replace("OPTION", "meshbridge.sharding_option = #mesh.axisarray<[[], [3]]>"))
    expected = "input:5:8: error: 'stablehlo.sine' op attribute 'meshbridge.sharding_option' names axis 3 of a mesh of 2 axes"
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


ON_A_SHARD = {
    "an axis that the mesh lacks": ("replicated_axes = array<i16: 3>", "names axis 3 of a mesh of 2 axes"),
    "an axis below the first": ("replicated_axes = array<i16: -1>", "names axis -1 of a mesh of 2 axes"),
    "an axis of another mesh": ("replicated_axes = array<i16: 2>", "names axis 2 of a mesh of 2 axes"),
    "a manual axis that the mesh lacks": ("manual_axes = array<i16: 7>", "names axis 7 of a mesh of 2 axes"),
    "a split along an axis that the mesh lacks": (
        "result_split_axes = [#mesh.axisarray<[[0], [5]]>]",
        "names axis 5 of a mesh of 2 axes",
    ),
    "partial axes of another kind": ('partial_axes = "x"', "is expected to be an array of integers, found"),
    "a source that is no name": ("source = 3 : i64", "is expected to be a string, found 3"),
    "attributes of a source that are none": ("source_attributes = [1]", "is expected to be a dictionary, found [1"),
}


@pytest.mark.parametrize("name", ON_A_SHARD)
def test_what_annotations_carry_is_checked(name: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carried, expected = ON_A_SHARD[name]
    program = MESH.format("[[0], [1]]").replace("to %s :", f"to %s {{meshbridge.{carried}}} :")
    bad.write_text(f"{program}\nmesh.mesh @other(shape = 2x2x2)\n")
    assert cli.main(["partition", "input"]) == 1
    found = capsys.readouterr().err
    assert f"'mesh.shard' op attribute 'meshbridge.{carried.partition(' ')[0]}' {expected}" in found, found


def test_an_op_of_the_dialect_ends_no_block(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text("mesh.mesh @m(shape = 2)\nfunc.func @main() {\n  %0 = mesh.process_linear_index on @m : index\n}")
    expected = "input:3:8: error: 'mesh.process_linear_index' op ends a block with no terminator"
    fails_with(capsys, cli.main(["convert", "input", "--to", "mesh", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


@pytest.mark.parametrize("split", ["[[1]]", "[[1]] halo_sizes = [1, 1]", "[[1]] partial = sum [0]"])
def test_tensors_of_unknown_sizes_are_not_partitioned(split: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad.write_text(
        f"""mesh.mesh @m(shape = 2x3)
func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {{
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %t = mesh.sharding @m split_axes = {split} : !mesh.sharding
  %0 = mesh.shard %a to %s : tensor<?x4xf32>
  %1 = mesh.shard %0 to %t annotate_for_users : tensor<?x4xf32>
  return %1 : tensor<?x4xf32>
}}"""
    )
    expected = "input:5:8: error: 'mesh.shard' op has a value of type tensor<?x4xf32>, expected sizes that are known"
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


@pytest.mark.parametrize("command", ["run", "verify"])
def test_programs_larger_than_this_machine(command: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They can be partitioned, but nobody can hold their values here."""
    bad.write_text(MESH.format("[[0], [1]]").replace("8x16", "16777216x16777216"))
    assert "16777216" in bad.read_text()
    assert cli.main(["partition", "input", "-o", os.devnull]) == 0
    fails_with(capsys, cli.main([command, "input"]), "input: error: the program needs more memory than there is here: ")


@pytest.mark.parametrize("name", ["split_axes", "mesh"])
def test_a_sharding_without_an_attribute_that_it_needs(name: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attributes = {"mesh": "@m", "split_axes": "#mesh.axisarray<[[0], [1]]>"}
    kept = ", ".join(f"{key} = {value}" for key, value in attributes.items() if key != name)
    program = MESH.format("").replace("mesh.sharding @m split_axes =  :", f'"mesh.sharding"() {{{kept}}} : () ->')
    bad.write_text(program)
    expected = f"input:3:8: error: 'mesh.sharding' op requires attribute '{name}'"
    fails_with(capsys, cli.main(["partition", "input", "-o", "out.mlir"]), expected, bad.parent / "out.mlir")


TWO_MESHES = """
module {
  sdy.mesh @a = <["x"=2]> loc(unknown)
  sdy.mesh @b = <["y"=2], device_ids=[1, 0]> loc(unknown)
  func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@a, [{"x"}]>}) -> tensor<8xf32> {
    %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@b, [{"y"}]>]>} : tensor<8xf32> loc("model.py":7:3)
    return %0 : tensor<8xf32>
  }
}
"""


def test_a_second_mesh_without_a_location_is_shown_where_it_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.mlir").write_text(TWO_MESHES)
    assert cli.main(["partition", str(tmp_path / "program.mlir"), "-o", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        "model.py:7:3: error: 'mesh.sharding' op @b (y=2) of devices 1, 0 is a second mesh beside @a (x=2), "
        f"of {tmp_path / 'program.mlir'}:5:3; "
        "a program is partitioned on one\n  hint: run what is for other devices by itself, with jax.device_put between\n"
    )


def test_a_script_is_no_program(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bad.parent / "train.py").write_text("import jax\n")
    assert cli.main(["report", "train.py"]) == 1
    assert capsys.readouterr().err.splitlines()[1].startswith("  hint: meshbridge run-script runs a Python script; ")
