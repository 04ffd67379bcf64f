"""The command `meshbridge`, in process and as a command."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.read import formats
from meshbridge.tools import cli

ERROR = re.compile(r"largest difference from the unsharded run: absolute \S+, relative (\S+)\n")


@pytest.fixture(scope="module")
def files(exported: export.Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One program in every format, under names that say nothing."""
    folder = tmp_path_factory.mktemp("formats")
    with mlir.context():
        module = ir.Module.parse(exported.mlir_module())
    contents = {
        "jax-export": bytes(exported.serialize()),
        "portable": bytes(exported.mlir_module_serialized),
        "mlir": exported.mlir_module().encode(),
        "bytecode": mlir.to_bytecode(module),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs a command that must succeed without a word on standard error; returns its output."""
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


@pytest.mark.parametrize("name", ["jax-export", "portable", "mlir", "bytecode"])
def test_run_checks_every_format(name: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ERROR.search(run(capsys, "run", files[name], "--check"))
    assert found is not None
    assert float(found[1]) < 1e-4


@pytest.mark.parametrize(
    ("emit", "holds"),
    [
        ("annotated", "mesh.shard "),
        ("mesh", "mesh.all_reduce "),
        ("local", "stablehlo.all_reduce"),
        ("exported", "sdy.manual_computation"),
        ("shard_map", "jax.shard_map("),
    ],
)
def test_partition_emits_each_stage(
    emit: str, holds: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.mlir"
    run(capsys, "partition", files["mlir"], "--emit", emit, "-o", output)
    assert holds in output.read_text()


@pytest.mark.parametrize("emit", ["annotated", "local"])
def test_stages_run_on_from_a_file(emit: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that was saved is continued: same outputs as in one go."""
    saved = tmp_path / "saved.mlir"
    run(capsys, "partition", files["mlir"], "--emit", emit, "-o", saved)
    whole, continued = tmp_path / "whole.npz", tmp_path / "continued.npz"
    run(capsys, "run", files["mlir"], "--outputs", whole)
    run(capsys, "run", saved, "--outputs", continued)
    with np.load(whole) as expected, np.load(continued) as found:
        assert expected.files == found.files
        for name in expected.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["jax-export", "portable"])
def test_partition_keeps_the_format(
    name: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    run(capsys, "partition", files[name], "-o", output)
    assert formats.recognise(output.read_bytes(), "out").name == name


def test_output_suffix_asks_for_a_format(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix, name in ((".mlir", "mlir"), (".mlirbc", "bytecode"), (".stablehlo", "portable"), (".jax_export", "jax-export")):
        output = tmp_path / f"out{suffix}"
        run(capsys, "partition", files["jax-export"], "-o", output)
        assert formats.recognise(output.read_bytes(), "out").name == name


def test_inputs_come_from_an_archive(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(1)
    x, first, second = (generator.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 32), (32, 16)))
    np.savez(tmp_path / "in.npz", x, first, second)
    run(capsys, "run", files["mlir"], "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_allclose(results["arr_0"], np.tanh(x @ first) @ second, rtol=1e-4, atol=1e-4)


def test_run_fails_where_the_difference_is_too_large(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(files["mlir"]), "--check", "--tolerance", "-1"]) == 1
    assert "differs by" in capsys.readouterr().err


def test_report(files: dict[str, Path], exported: export.Exported, capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "report", files["jax-export"])
    assert re.search(
        r"^all_reduce +data,model +8 +7 B +1 +7 B +\d+\.\d% +\S+test\S*conftest\.py:\d+:\d+ \(.*network\)$", table, re.M
    )
    assert re.search(r"^    reduce at conftest.py:\d+ reduces a split dimension: partial sum over data, model; ", table, re.M)
    parsed = json.loads(run(capsys, "report", files["jax-export"], "--json"))
    assert parsed["wire_bytes"] == meshbridge.report(exported).wire_bytes > 0
    assert len(parsed["collectives"]) == len(meshbridge.report(exported).collectives)


def test_convert_closed_leaves_shardy_no_choice(
    files: dict[str, Path], mesh: jax.sharding.Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, "convert", files["mlir"], "--to", "sdy", "--closed")
    main = next(line for line in text.splitlines() if "@main" in line)
    assert main.count("sdy.sharding = ") == 5  # three arguments, two results
    assert "?" not in main
    assert "mesh." not in text.replace("stablehlo.mesh", "")
    run(capsys, "convert", files["jax-export"], "--to", "sdy", "--closed", "-o", tmp_path / "closed.jax_export")
    closed = export.deserialize(bytearray((tmp_path / "closed.jax_export").read_bytes()))
    assert None not in closed.in_shardings_jax(mesh)


def test_convert_closed_takes_results_that_are_no_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = """mesh.mesh @m(shape = 2x4)
func.func @main(%x: tensor<8xf32>) -> (i32, tensor<8xf32>) {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<8xf32>
  %one = arith.constant 1 : i32
  return %one, %0 : i32, tensor<8xf32>
}"""
    (tmp_path / "number.mlir").write_text(program)
    text = run(capsys, "convert", tmp_path / "number.mlir", "--to", "sdy", "--closed")
    assert '-> (i32, tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"0"}]>})' in text
    (tmp_path / "number.mlir").write_text(program.replace("i32, tensor<8xf32>", "i32").replace("%one, %0 : i32", "%one : i32"))
    assert "return %" in run(capsys, "convert", tmp_path / "number.mlir", "--to", "sdy", "--closed")


def test_convert_to_mesh_and_back(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = run(capsys, "convert", files["mlir"], "--to", "mlir")
    run(capsys, "convert", files["mlir"], "--from", "sdy", "--to", "mesh", "--binary", "-o", tmp_path / "mesh")
    assert formats.recognise((tmp_path / "mesh").read_bytes(), "mesh").name == "bytecode"
    assert run(capsys, "convert", tmp_path / "mesh", "--from", "mesh", "--to", "sdy") == original


def test_standard_streams(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(files["jax-export"].read_bytes())))
    assert cli.main(["partition", "-", "-o", "-", "--emit", "mesh"]) == 0
    assert "mesh.mesh @mesh(shape = 2x4)" in capfd.readouterr().out


def test_as_a_command(files: dict[str, Path]) -> None:
    """The number of devices is set before JAX starts, and nothing but results is printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-m", "meshbridge.tools.cli", "run", str(files["jax-export"]), "--devices", "8", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ERROR.search(done.stdout)


def test_timing(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", str(files["mlir"]), "-o", os.devnull, "--timing"]) == 0
    assert re.search(r"\d s .* verify  sharding-refinement$", capsys.readouterr().err, re.M)


def test_reshard(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("reshard", "--shape", "6x6xf32", "--mesh", "2x3", "--from", "[[0],[1]]", "--to", "[[1],[0]]", "--run")
    assert "ran on 6 devices: every device holds its shard" in run(capsys, *arguments)
    record = json.loads(run(capsys, *arguments, "--json", "--resharding", "exact"))
    assert record["mesh"] == [2, 3]
