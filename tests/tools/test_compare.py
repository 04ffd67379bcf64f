"""`meshbridge compare`: that its figures are those of the partitioners themselves, and that nobody's failure takes it down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.contestants import CONTESTANTS as MEASURED
from meshbridge.analysis.hlo_figures import figures
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.tools import cli, console
from meshbridge.tools.compare import command, spmd, text
from meshbridge.tools.compare.comparison import Comparison
from meshbridge.tools.compare.figures import Figures
from testdata import program
from testdata.catalogue import build
from tests.operations.differential import device_mesh

NAMES = ["meshbridge", "xla-shardy", "xla-gspmd"]


SHAPES = ((8, 16), (16, 8))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A matrix product that must be summed over 8 devices, as jax.export wrote it, as text, and partitioned already."""
    folder = tmp_path_factory.mktemp("programs")
    mesh = device_mesh((2, 4))
    columns, rows = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, ("a", "b")), (("a", "b"), None)))
    product = jax.jit(lambda x, y: x @ y, in_shardings=(columns, rows), out_shardings=NamedSharding(mesh, PartitionSpec()))
    exported = export.export(product)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES))
    (folder / "artifact").write_bytes(exported.serialize())
    (folder / "text").write_text(exported.mlir_module())
    assert cli.main(["partition", str(folder / "artifact"), "-o", str(folder / "partitioned.jax_export")]) == 0
    assert cli.main(["partition", str(folder / "artifact"), "--emit", "mesh", "-o", str(folder / "mesh.mlir")]) == 0
    (folder / "no_boundary.mlir").write_text("""
    mesh.mesh @m(shape = 2)
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<8xf32> -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }
    """)
    return {path.stem: path for path in folder.iterdir()}


def read(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    """The JSON of a comparison that succeeds without a word on standard error."""
    status = cli.main(["compare", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    found: dict[str, object] = json.loads(captured.out)
    return found


def test_figures_are_those_of_the_partitioners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmarks take another way into XLA: from the traced function, in one process."""
    (tmp_path / "mlp").write_bytes(build("mlp_ws1d").export().serialize())
    found = read(capsys, tmp_path / "mlp")
    assert (found["schema"], found["devices"], found["reference"], found["remark"]) == (text.SCHEMA, 8, "unsharded", "")
    assert list(found["contestants"]) == NAMES
    for name in NAMES:
        one = Figures(**found["contestants"][name])
        assert found["contestants"][name].keys() == {field.name for field in fields(Figures)}
        expected = figures(MEASURED[name](build("mlp_ws1d")).compiled.as_text())
        assert (one.wire_bytes, one.bytes_by_kind, one.flops) == (expected.wire_bytes, expected.bytes_by_kind, expected.flops)
        assert (one.collectives, one.count_by_kind) == (expected.collectives, expected.count_by_kind)
        assert one.temporary_bytes > 0
        assert one.compile_seconds > 0
        assert one.run_seconds > 0
        assert (one.partition_seconds is not None) == (name == "meshbridge")
        assert one.relative_difference is not None
        assert 0 <= one.relative_difference < 1e-5


def test_as_a_command(files: dict[str, Path]) -> None:
    """The number of devices is set for the children, nothing but the table is printed, and it has a column each."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    arguments = [sys.executable, "-m", "meshbridge.tools.cli", "compare", "-", "--seed", "3"]
    done = subprocess.run(arguments, input=files["text"].read_bytes(), env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    (header,) = [line for line in lines if "meshbridge" in line]
    assert header.split() == ["per", "device", *NAMES]
    (wire,) = [line for line in lines if "wire bytes" in line]
    assert wire.split()[-6:] == ["448", "B"] * 3  # an all-reduce of 256 bytes over 8 devices
    assert not [line for line in lines if "failed" in line]


@pytest.mark.slow
def test_inputs_decide_the_outputs(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zeros in, zeros out, for everybody."""
    np.savez(tmp_path / "in.npz", *(np.zeros(shape, np.float32) for shape in SHAPES))
    found = read(capsys, files["artifact"], "--inputs", tmp_path / "in.npz")
    assert [found["contestants"][name]["absolute_difference"] for name in NAMES] == [0, 0, 0]


@pytest.mark.slow
def test_a_program_without_an_unsharded_form_is_compared_with_xla(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = read(capsys, files["partitioned"])
    assert found["reference"] == "xla-shardy"
    assert "there is no unsharded program to run" in found["remark"]
    assert found["contestants"]["xla-shardy"]["absolute_difference"] is None
    assert found["contestants"]["meshbridge"]["relative_difference"] < 1e-5


def outcome(script: str, monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]) -> command.Comparison:
    """The comparison whose children run `script` instead, which sees their arguments."""
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", script))
    monkeypatch.setattr(command, "FORKS", False)
    module = formats.unpack(export.deserialize(bytearray(files["artifact"].read_bytes())), context()).module
    return command.compare(module, devices=8)


FATAL = """
import os, sys
sys.stderr.write("W0000 00:00:00 a warning\\nF1121 07:00:00 spmd.cc:7] Check failed: sharding\\n*** stack ***\\n")
sys.stderr.flush()
os.abort()
"""


def test_a_contestant_that_aborts_is_reported(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(FATAL, monkeypatch, files)
    for name in NAMES:
        assert found.figures[name].error == "ended by SIGABRT: F1121 07:00:00 spmd.cc:7] Check failed: sharding"
    assert found.reference == ""
    assert {cells[1:] for cells in text.rows(found)} == {("failed",) * 3}


@pytest.mark.slow
def test_one_failure_leaves_the_others_their_columns(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import os, sys\nif 'xla-gspmd' in sys.argv[2]: os.abort()\n"
        "from meshbridge.tools.compare.child import main\nsys.exit(main(sys.argv[1:]))"
    )
    found = outcome(script, monkeypatch, files)
    assert [bool(found.figures[name].error) for name in NAMES] == [False, False, True]
    assert found.reference == "unsharded"


def test_a_child_that_says_nothing_is_reported(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        outcome("import sys; sys.exit(7)", monkeypatch, files).figures["meshbridge"].error
        == "ended with status 7: it said nothing"
    )


def test_wrong_numbers_are_shown() -> None:
    """An infinite difference is one that JSON has no number for."""
    figures = Figures(absolute_difference=float("inf"), relative_difference=float("inf"))
    comparison = Comparison(8, "unsharded", "", {"xla-gspmd": figures})
    read = json.loads(text.as_json(comparison), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read["contestants"]["xla-gspmd"]["relative_difference"] == "inf"
    assert ("largest difference", "inf") in list(text.rows(comparison))


@pytest.mark.slow
def test_what_we_refuse_fails_and_shows_the_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of a device has no meaning where a program computes on global tensors."""
    path = tmp_path / "program.mlir"
    path.write_text("""
    sdy.mesh @m = <["x"=2]>
    func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> tensor<8xf32> {
      %0 = stablehlo.replica_id : tensor<ui32>
      %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<f32>
      %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<8xf32>
      %3 = stablehlo.add %x, %2 : tensor<8xf32>
      return %3 : tensor<8xf32>
    }
    """)
    assert cli.main(["compare", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["contestants"]
    assert f"{path}:4:12: error: 'stablehlo.replica_id' op says which device runs it" in found["meshbridge"]["error"]
    assert not found["xla-shardy"]["error"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mesh", [], "the program is partitioned already, there is nothing to compare"),
        ("no_boundary", [], "'mesh.all_reduce' op belongs to one device's program, which is partitioned already"),
        ("artifact", ["--devices", "4"], "mesh @mesh needs 8 devices, there are 4"),
        ("artifact", ["--inputs", "nowhere.npz"], "nowhere.npz: error: not an archive of arrays"),
        ("artifact", ["--seed", "-1"], "expected a non-negative number, found '-1'"),
        ("artifact", ["--devices", "0"], "expected a positive number, found '0'"),
    ],
)
def test_what_cannot_be_compared(
    name: str, arguments: list[str], message: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["compare", str(files[name]), *arguments])
    captured = capsys.readouterr()
    assert status == (console.USAGE if captured.err.startswith("meshbridge") else 1)
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_inputs_that_do_not_fit_are_refused(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "one.npz", np.zeros(3))
    assert cli.main(["compare", str(files["artifact"]), "--inputs", str(tmp_path / "one.npz")]) == 1
    assert "the program takes 2 arguments, 1 given" in capsys.readouterr().err
    np.savez(tmp_path / "two.npz", np.zeros(3), np.zeros(3))
    assert cli.main(["compare", str(files["artifact"]), "--inputs", str(tmp_path / "two.npz")]) == 1
    assert "argument 0: expected float32[8, 16], found float64[3]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("rows", [1 << 40, 1 << 62])
def test_arguments_beyond_the_memory_are_refused(
    command: str, rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors that fit into 64 bits and no machine, and those whose bytes have more than 64 bits."""
    path = tmp_path / "large.mlir"
    path.write_text(f"""
    sdy.mesh @m = <["x"=2]>
    func.func @main(%x: tensor<{rows}x8xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}}) -> tensor<f32> {{
      %0 = stablehlo.constant dense<0.0> : tensor<f32>
      return %0 : tensor<f32>
    }}
    """)
    assert cli.main([command, str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    size = f"{rows * 32:.3g} bytes"
    room = f"{path}: error: the program needs more memory than there is here: its arguments have {size}, argument 0 (float32"
    assert (f"'func.func' op has a tensor of {size}" if command == "run" and rows > 1 << 60 else room) in captured.err


@pytest.mark.parametrize("content", [b"", b"ML\xefRnonsense", b"func.func @main() {"])
def test_bad_input_is_one_diagnostic(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert cli.main(["compare", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(str(path))


def test_a_program_without_a_mesh_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.mlir").write_text("func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
    assert cli.main(["compare", str(tmp_path / "plain.mlir")]) == 1
    assert "names no mesh, there is nothing to partition" in capsys.readouterr().err


@pytest.mark.slow
def test_mesh_ir_in_any_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    """The RFC's own walk-through, whose function is not called `main` and whose operations carry annotations of their own."""
    testdata = Path(program.__file__).parent
    found = read(capsys, testdata / "rfc" / "mlp_1d_weight_stationary_with_sharding_on_operation.mlir")
    assert [found["contestants"][name]["error"] for name in NAMES] == ["", "", ""]
    assert max(found["contestants"][name]["relative_difference"] for name in NAMES) < 1e-5


def test_tiles_are_those_of_jax() -> None:
    """XLA's shardings, read and cut by us, against JAX's own shards: splits over one axis, several, in any order, and none."""
    mesh = device_mesh((2, 4))
    named = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("a", "b"), (("b", "a"), None), (None, "a"), ())]
    for sharding in named:
        array = np.arange(16 * 8).reshape(16, 8)
        found = spmd.tiles(sharding._to_xla_hlo_sharding(2).to_proto(), 2, 8)
        pieces = found.split(array)
        for shard in jax.device_put(array, sharding).addressable_shards:
            np.testing.assert_array_equal(pieces[shard.device.id], shard.data)
        np.testing.assert_array_equal(found.join(pieces, array.shape), array)


@pytest.mark.parametrize("shape", [(5,), (7, 3), (1, 9)])
def test_tiles_that_stick_out_are_padded(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape) + 1
    found = spmd.ArrayTiles((4, *(1,) * (len(shape) - 1)), (0, 1, 2, 3))
    pieces = found.split(array)
    assert {piece.shape for piece in pieces} == {found.shape(shape)}
    np.testing.assert_array_equal(found.join(pieces, shape), array)


@pytest.mark.slow
def test_donated_arguments_and_open_shardings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that a program takes for itself are given anew for every run; XLA decides what is left open."""
    mesh = device_mesh((2, 4))
    rows = NamedSharding(mesh, PartitionSpec("a", None))
    step = jax.jit(lambda state, x: (state + x, (x * 2).astype(jnp.bfloat16)), in_shardings=(rows, None), donate_argnums=0)
    shapes = [jax.ShapeDtypeStruct((16, 8), jnp.float32)] * 2
    (tmp_path / "step").write_bytes(export.export(step)(*shapes).serialize())
    found = read(capsys, tmp_path / "step")
    assert [found["contestants"][name]["absolute_difference"] for name in NAMES] == [0, 0, 0]
