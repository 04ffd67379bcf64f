"""Command lines: what cannot be followed is refused with exit status 2, and no option is ignored in silence."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.read import bytecode
from meshbridge.tools import cli, console, mesh_opt

TEXT = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
"""  # noqa: E501

RESHARD = "reshard --shape 8x8xf32 --mesh 2 --from [[0]] --to [[],[0]]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, mesh: jax.sharding.Mesh) -> Path:
    """A module as text, an artifact, one for two platforms, one with an argument that nothing reads, and a partitioned module."""
    folder = tmp_path_factory.mktemp("usage")
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jnp.zeros((8, 16))

    def by_platform(x: jax.Array) -> jax.Array:
        return lax.platform_dependent(x, cpu=lambda x: x * 2, default=lambda x: x + x.sum())

    (folder / "text").write_text(TEXT)
    jitted = jax.jit(lambda unused, x: x.sum(axis=0), in_shardings=(None, rows))
    (folder / "artifact").write_bytes(export.export(jitted)(jnp.int32(0), x).serialize())
    several = export.export(jax.jit(by_platform, in_shardings=rows), platforms=("tpu", "cpu"))(x)
    (folder / "several").write_bytes(several.serialize())
    assert cli.main(["partition", str(folder / "text"), "--emit", "mesh", "-o", str(folder / "done.mlir")]) == 0
    np.savez(folder / "in.npz", np.int32(0), np.ones((8, 16), np.float32))
    return folder


def ends(main: Callable[[list[str]], int], line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a command line, which leaves no output behind unless it succeeds."""
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    status = main(line.split())
    after = set(folder.iterdir())
    assert before == after or status == 0
    for path in after - before:
        path.unlink()
    return status


USELESS = {
    "partition text --json": "--json has no effect without --report",
    "partition text --emit annotated --report": "--report has no effect with --emit annotated",
    "partition text --emit annotated --resharding exact": "--resharding has no effect with --emit annotated",
    "partition text --emit annotated --collectives off": "--collectives has no effect with --emit annotated",
    "partition text --emit annotated --replica-groups mesh-axes": "--replica-groups has no effect with --emit annotated",
    "partition text --emit mesh --replica-groups mesh-axes": "--replica-groups has no effect with --emit mesh",
    "run text --tolerance 1e-3": "--tolerance has no effect without --check",
    "run text --outputs -": "--outputs needs a file",
    "run text --seed 0 --inputs in.npz": "argument --inputs: not allowed with argument --seed",
    "compare text --seed 0 --inputs in.npz": "argument --inputs: not allowed with argument --seed",
    "compare text --target tpu:v5e:2x4 --seed 0": "--seed has no effect with --target, for which nothing runs",
    "compare text --target tpu:v5e:2x4 --devices 8": "--devices has no effect with --target, for which nothing runs",
    "compare text --target tpu:v5e:2x4 --inputs in.npz": "--inputs has no effect with --target, for which nothing runs",
    "compare text --timeout 0": "argument --timeout: expected a positive number, found '0'",
    "compare text --process-memory inf": "argument --process-memory: expected a positive number, found 'inf'",
    "compile text -o x": "the following arguments are required: --target",
    "convert text --to mlir -o x.mlirbc": "--to mlir asks for MLIR text",
    "convert text --to bytecode -o x.mlir": "--to bytecode asks for MLIR bytecode, but the name x.mlir for MLIR text",
    "convert text --to portable -o x.mlir": "--to portable asks for a StableHLO portable artifact, but the name x.mlir for",
    "convert artifact --to jax-export -o x.mlir": "--to jax-export asks for a serialized jax.export artifact, but the name",
    "convert artifact --to mlir -o x.jax_export": "but the name x.jax_export for a serialized jax.export artifact",
    "convert text --to llvm19 -o x.mlirbc": "--to llvm19 asks for",
    "convert text --to rfc -o x.stablehlo": "--to rfc asks for",
    "convert text --to mlir --closed": "--closed has no effect with --to mlir, which is a format",
    "convert text --to portable --closed -o x": "--closed has no effect with --to portable, which is a format",
    "convert text --to mlir --binary": "--binary has no effect with --to mlir",
    "convert text --to llvm22 --binary": "--binary has no effect with --to llvm22",
    "convert text --to rfc --binary": "--binary has no effect with --to rfc",
    "convert text --to portable --binary": "--binary has no effect with --to portable",
    "convert artifact --to jax-export --binary": "--binary has no effect with --to jax-export",
    f"{RESHARD} --resharding exact --alpha 1": "--alpha has no effect with --resharding exact",
    f"{RESHARD} --resharding exact --beta 1": "--beta has no effect with --resharding exact",
}
"""Command lines of `meshbridge` that are refused whatever the input holds, and what the diagnostic says."""


@pytest.mark.parametrize("line", USELESS)
def test_meshbridge_refuses(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(cli.main, line, folder, monkeypatch) == console.USAGE
    command = line.split()[0]
    captured = capsys.readouterr()
    assert captured.err.startswith(f"meshbridge {command}: error: "), captured.err
    assert USELESS[line] in captured.err
    assert captured.err.count("error:") == 1
    assert not captured.out


OF_INPUT = {
    "partition done.mlir --resharding exact": "done.mlir: error: --resharding has no effect on a program that is partitioned",
    "report done.mlir --resharding exact": "done.mlir: error: --resharding has no effect on a program that is partitioned",
    "partition text --platform cpu": "text: error: a platform has no effect on a program that is not for several platforms",
    "report artifact --platform cpu": "artifact: error: a platform has no effect on a program that is not for several platforms",
    "compare several --target gpu:h100:1x1x8": "several: error: the artifact is for the platforms tpu, cpu, not for cuda",
    "compile several --target gpu:h100:1x1x8 -o x": "several: error: the artifact is for the platforms tpu, cpu, not for cuda",
    "compare text --target tpu:v5e:2x2": "text: error: mesh @mesh needs 8 devices, target 'tpu:v5e:2x2' has 4",
    "compare done.mlir --target tpu:v5e:2x4": "done.mlir: error: the program is partitioned already",
    "report several --platform cuda": "several: error: the artifact is for the platforms tpu, cpu, not for cuda",
    "partition text --dims b=8": "text: error: expected a program with symbolic dimensions to give sizes",
    "convert artifact --to sdy --binary": "artifact: error: --binary has no effect on a serialized jax.export artifact",
    "convert text --to sdy --binary -o x.stablehlo": "text: error: --binary has no effect on a StableHLO portable artifact",
    "partition artifact --emit annotated -o x.jax_export": "artifact: error: a jax.export artifact holds StableHLO on global",
    "partition artifact --emit mesh -o x.jax_export": "artifact: error: a jax.export artifact holds StableHLO on global shapes",
    "partition artifact --emit local -o x.jax_export": "artifact: error: a jax.export artifact holds StableHLO on global shapes",
    "convert artifact --to mesh -o x.jax_export": "artifact: error: a jax.export artifact holds StableHLO on global shapes",
    "partition text --emit mesh -o x.stablehlo": "text: error: a StableHLO portable artifact cannot hold mesh IR",
    "partition text -o x.jax_export": "text: error: a jax.export artifact is only made from one",
}
"""Command lines that this input does not allow."""


@pytest.mark.parametrize("line", OF_INPUT)
def test_meshbridge_refuses_for_this_input(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(cli.main, line, folder, monkeypatch) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(OF_INPUT[line]), captured.err
    assert captured.err.count("error:") == 1


MESH_OPT = {
    "text --emit-bytecode --emit-spelling=llvm19": "--emit-spelling has no effect with --emit-bytecode",
    "text --emit-bytecode --emit-spelling=mlir": "--emit-spelling has no effect with --emit-bytecode",
    "text --emit-bytecode --mlir-print-op-generic": "--mlir-print-op-generic has no effect with --emit-bytecode",
    "text --emit-bytecode --mlir-print-debuginfo": "--mlir-print-debuginfo has no effect with --emit-bytecode",
    "text --emit-bytecode --split-input-file": "--split-input-file has no effect on a binary output",
    "text --emit-spelling=portable --split-input-file": "--split-input-file has no effect on a binary output",
    "text --emit-spelling=llvm22 --mlir-print-op-generic": "--mlir-print-op-generic has no effect with --emit-spelling=llvm22",
    "text --print-sharding-interface --emit-bytecode": "--emit-bytecode has no effect with --print-sharding-interface",
    "text --print-sharding-interface --emit-spelling=rfc": "--emit-spelling has no effect with --print-sharding-interface",
    "text --print-sharding-interface --mlir-print-debuginfo": "--mlir-print-debuginfo has no effect with",
    "text --emit-spelling=klingon": "unknown format 'klingon', expected one of",
    "text --mlir-print-ir-before=nonsense": "--mlir-print-ir-before: unknown pass 'nonsense'",
    "text --mlir-print-ir-after=inline-calls,nonsense": "--mlir-print-ir-after: unknown pass 'nonsense'",
    "text --inline-calls --pass-pipeline=inline-calls": "pass flags and --pass-pipeline exclude each other",
    "text --pass-pipeline=nonsense": "unknown pass 'nonsense'",
    "text --legalize=nonsense": "unknown pattern 'nonsense', expected one of batch-lookups, ",
    "text --inline-calls=depth=3": "pass 'inline-calls' has no option 'depth'",
    "text --nonsense": "unrecognized arguments: --nonsense",
}
"""The same of `mesh-opt`."""


@pytest.mark.parametrize("line", MESH_OPT)
def test_mesh_opt_refuses(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(mesh_opt.main, line, folder, monkeypatch) == console.USAGE
    captured = capsys.readouterr()
    assert MESH_OPT[line] in captured.err
    assert captured.err.count("error:") == 1
    assert not captured.out


DONE = {
    "convert done.mlir --to llvm22 -o x.mlir": b"shard.grid",
    "convert text --to rfc -o x.mlir": b"mesh.cluster",
    "convert text --to bytecode --binary -o x.mlirbc": bytecode.MAGIC,
    "convert text --to sdy --binary -o x.mlirbc": bytecode.MAGIC,
    "convert text --to sdy --binary -o x": bytecode.MAGIC,
    "convert text --to portable -o x.stablehlo": bytecode.MAGIC,
    "convert text --to sdy -o x.mlirbc": bytecode.MAGIC,
    "partition several --platform cpu -o x.mlir": b"stablehlo",
    "partition several --platform tpu -o x.mlir": b"stablehlo.all_reduce",
    "partition several -o x.mlir": b"stablehlo.case",
    "run several --check --outputs x": b"PK",
    "run artifact --inputs in.npz --outputs x": b"PK",
}
"""What is done instead, and what its output then holds."""


@pytest.mark.parametrize("line", DONE)
def test_meshbridge_does(line: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / line.split()[-1]
    arguments = [str(folder / word) if (folder / word).exists() else word for word in line.split()[:-1]]
    assert cli.main([*arguments, str(output)]) == 0
    content = output.read_bytes()
    assert DONE[line] in content
    assert b"stablehlo.case" not in content or "--platform" not in line


def test_reports_of_one_platform(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for platform, reduces in (("cpu", False), ("tpu", True)):
        assert cli.main(["report", str(folder / "several"), "--platform", platform]) == 0
        assert ("all_reduce" in capsys.readouterr().out) == reduces


def test_inputs_by_the_caller_s_positions(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The first argument of the artifact is not one of its module."""
    output = tmp_path / "out.npz"
    assert cli.main(["run", str(folder / "artifact"), "--inputs", str(folder / "in.npz"), "--outputs", str(output)]) == 0
    with np.load(output) as results:
        np.testing.assert_array_equal(results["arr_0"], np.full(16, 8))
    np.savez(tmp_path / "one.npz", np.ones((8, 16), np.float32))
    for command in ("run", "compare"):
        capsys.readouterr()
        assert cli.main([command, str(folder / "artifact"), "--inputs", str(tmp_path / "one.npz")]) == 1
        assert capsys.readouterr().err == f"{folder / 'artifact'}: error: the program takes 2 arguments, 1 given\n"


@pytest.mark.parametrize(("main", "name"), [(cli.main, "meshbridge"), (mesh_opt.main, "mesh-opt")])
def test_version(main: Callable[[list[str]], int], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"meshbridge {meshbridge.__version__}\n"
    assert meshbridge.__version__ == version("meshbridge")


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "meshbridge", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"meshbridge {meshbridge.__version__}\n"
    assert subprocess.run([sys.executable, "-m", "meshbridge"], capture_output=True, check=False).returncode == console.USAGE


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (cli.main, ["partition", "artifact"]),
        (cli.main, ["convert", "text", "--to", "bytecode"]),
        (mesh_opt.main, ["text", "--emit-bytecode"]),
    ],
)
def test_a_terminal_gets_no_binary(
    main: Callable[[list[str]], int],
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", buffering=0), os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(arguments) == 1
        assert main(["convert", "text", "--to", "mesh"] if main is cli.main else ["text"]) == 0  # text is for people
        monkeypatch.undo()
    assert "<stdout>: error: the output is binary, which a terminal cannot show\n  hint: name a file" in capsys.readouterr().err
