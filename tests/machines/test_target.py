"""Targets: their notation, and what the commands say of them. Needs no compiler of an accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from meshbridge.machines import machine, target
from meshbridge.runtime import targets
from meshbridge.tools import cli, console
from meshbridge.tools.compare import command, process, text
from meshbridge.tools.compare.figures import Figures, Modelled
from meshbridge.tools.compare.process import Limits
from tests.house import BRIDGE
from tests.machines.examples import MINE
from tests.patience import PATIENCE

V5E, H100 = "tpu:v5e:2x4", "gpu:h100:1x1x8"

PROGRAM = """sdy.mesh @m = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  return %a : tensor<8x16xf32>
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("written", "name", "topology", "devices"),
    [
        (V5E, "v5e", (2, 4), 8),
        ("tpu:v5p:4x4x4", "v5p", (4, 4, 4), 64),
        ("tpu:7x:2x2x1", "7x", (2, 2, 1), 8),
        ("tpu:v4:2x2x2", "v4", (2, 2, 2), 8),
        ("gpu:b200:1x2x8", "b200", (1, 2, 8), 16),
        (f"gpu:{BRIDGE}/machines/gpu/a100.toml:2x1x4", "a100", (2, 1, 4), 8),
    ],
)
def test_targets_as_they_are_written(written: str, name: str, topology: tuple[int, ...], devices: int) -> None:
    found = target.parse(written)
    assert (found.text, found.machine.name, found.topology, found.devices) == (written, name, topology, devices)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("v5e", "expected a target PLATFORM:DEVICE:TOPOLOGY, as in tpu:v5e:2x4 or gpu:h100:1x1x8, found 'v5e'"),
        ("tpu:v5e", "expected a target PLATFORM:DEVICE:TOPOLOGY"),
        ("tpu::2x4", "expected a target PLATFORM:DEVICE:TOPOLOGY"),
        ("cpu8", "expected a target PLATFORM:DEVICE:TOPOLOGY"),
        ("cpu:x86:8", "target 'cpu:x86:8': expected platform tpu or gpu, found 'cpu'"),
        ("cpu:cpu8:8", "target 'cpu:cpu8:8': expected platform tpu or gpu, found 'cpu'"),
        ("tpu:v9:2x4", "unknown TPU 'v9', expected one of 7x, v4, v5e, v5p, v6e, or the path of a .toml file"),
        ("gpu:v5e:1x1x8", "unknown GPU 'v5e', expected one of a100, b200, h100, h200, or"),
        ("tpu:v5e:2x", "expected a topology of 2 positive numbers with x between them (x, y), found '2x'"),
        ("tpu:v5e:2x0", "found '2x0'"),
        ("tpu:v5e:2x2x2", "found '2x2x2'"),
        ("tpu:v5p:2x4", "3 positive numbers with x between them (x, y, z), found '2x4'"),
        ("gpu:h100:8", "3 positive numbers with x between them (slices, hosts, devices), found '8'"),
        ("tpu:./nowhere.toml:2x4", "nowhere.toml: error: cannot read: No such file or directory"),
        (f"tpu:{BRIDGE}/machines/gpu/h100.toml:2x4", "expected a device of platform 'tpu', found one of 'gpu'"),
    ],
)
def test_what_is_no_target(written: str, message: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, *more in (("compare",), ("compile", "-o", str(program.parent / "out"))):
        assert cli.main([name, str(program), "--target", written, *more]) == console.USAGE
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.startswith(f"meshbridge {name}: ")
        assert len(captured.err.splitlines()) == 1
        assert not captured.out


def test_looking_for_a_compiler_imports_nothing() -> None:
    code = (
        "import sys\nfrom meshbridge.machines.target import parse\nfrom meshbridge.runtime import targets\n"
        "for name in ('tpu:v5e:2x4', 'gpu:h100:1x1x8'):\n"
        "    try: targets.check_installed(parse(name))\n    except targets.MeshError: pass\n"
        "print({'jax', 'libtpu', 'jax_plugins.xla_cuda12', 'jax_plugins.xla_cuda13'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(("written", "line"), [(V5E, "pip install 'meshbridge[tpu]'"), (H100, "pip install 'meshbridge[gpu]'")])
def test_a_compiler_that_is_not_installed(
    written: str, line: str, program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(machine.PLATFORMS, ("no_such_package.at_all",))
    monkeypatch.setattr(targets, "PACKAGES", nothing)
    output = program.parent / "out"
    for arguments in (["compare", str(program)], ["compile", str(program), "-o", str(output)]):
        assert cli.main([*arguments, "--target", written]) == 1
        captured = capsys.readouterr()
        assert not captured.out
        assert captured.err.startswith(f"{program}: error: target '{written}': XLA's compiler for {written[:3].upper()}s is not")
        assert captured.err.splitlines()[1:] == [f"  hint: {line}"]
    assert not output.exists()


def children(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Has the children run `script`; for it, a compiler is installed. It sees where to leave its result, and for whom."""
    before = "import json, os, sys, time\nfolder, asked = sys.argv[1], json.loads(sys.argv[2])\n"
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", before + script))
    monkeypatch.setattr(command, "FORKS", False)
    monkeypatch.setattr(targets, "check_installed", lambda target: None)


def leaving(figures: Figures) -> str:
    """A script that leaves these figures."""
    return f"open(folder + '/result.json', 'w').write({json.dumps(asdict(figures))!r})\n"


FOUND = Figures(
    wire_bytes=3e6,
    bytes_by_kind={"all-gather": 1e6, "all-reduce": 2e6},
    count_by_kind={"all-gather": 2, "all-reduce": 1},
    collectives=3,
    executed_collectives=5,
    synchronous=4,
    asynchronous=1,
    exposed_bytes=2e6,
    overlapped_bytes=1e6,
    modelled=Modelled(1200.0, 300.0, "microseconds", 2, 30.0),
    argument_bytes=1 << 20,
    temporary_bytes=1 << 21,
    peak_bytes=1 << 35,
    flops=1e9,
    partition_seconds=0.5,
    compile_seconds=2.0,
)


def read(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON of a comparison that says nothing on standard error."""
    cli.main(["compare", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert not captured.err
    return json.loads(captured.out)


def test_json_of_several_targets(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One document, of as many targets as were asked for; a program takes the first devices of a larger one."""
    children(monkeypatch, leaving(FOUND))
    found = read(capsys, program, "--target", V5E, "--target", "gpu:h100:1x2x8")
    assert found.keys() == {"schema", "targets"}
    assert found["schema"] == text.SCHEMA
    assert [(each["target"], each["devices"], each["used"]) for each in found["targets"]] == [
        (V5E, 8, 8),
        ("gpu:h100:1x2x8", 16, 8),
    ]
    for each in found["targets"]:
        assert [contestant["name"] for contestant in each["contestants"]] == list(command.CONTESTANTS)
        for contestant in each["contestants"]:
            assert contestant.keys() == {"name", *text.TARGET_KEYS}
            assert (contestant["wire_bytes"], contestant["executed"], contestant["peak_bytes"]) == (3e6, 5, 1 << 35)
            assert (contestant["synchronous"], contestant["asynchronous"]) == (4, 1)
            assert (contestant["exposed_bytes"], contestant["overlapped_bytes"]) == (2e6, 1e6)
            assert contestant["modelled"] == asdict(FOUND.modelled)
            assert contestant["error"] == ""


def test_peers_are_left_out(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Then there may be nobody to make ratios with; without a target, all three are compared."""
    children(monkeypatch, leaving(FOUND))
    (found,) = read(capsys, program, "--target", V5E, "--without", "xla-gspmd")["targets"]
    assert [contestant["name"] for contestant in found["contestants"]] == ["meshbridge", "xla-shardy"]
    assert cli.main(["compare", str(program), "--target", V5E, "--without", "xla-shardy"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["per", "device", "meshbridge", "xla-gspmd", "ratio"]
    assert cli.main(["compare", str(program), "--without", "xla-shardy"]) == 2
    assert "--without has no effect without --target" in capsys.readouterr().err


def test_the_documentation_has_every_key() -> None:
    page = (BRIDGE.parents[1] / "docs" / "targets.md").read_text()
    for key in (*text.TARGET_KEYS, "target", "devices", "used", "contestants", "compiler_options", "name"):
        assert f"`{key}`" in page, key


def test_the_table_of_a_target(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A column of ratios, and a line for whoever does not fit."""
    other = leaving(Figures(**asdict(FOUND) | {"wire_bytes": 4e6, "peak_bytes": 1 << 30}))
    children(monkeypatch, f"if asked['contestant'] == 'xla-shardy':\n    {other}else:\n    {leaving(FOUND)}")
    assert cli.main(["compare", str(program), "--target", "tpu:v5e:4x4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tpu:v5e:4x4: the first 8 of 16 devices of TPU v5e, compiled ahead of time, not run"
    assert lines[1].split() == ["per", "device", *command.CONTESTANTS, "ratio"]
    assert lines[2].split() == ["wire", "bytes", "3.0", "MB", "4.0", "MB", "3.0", "MB", "0.75"]
    (modelled,) = [line.split() for line in lines if line.startswith("modelled")]
    assert modelled == ["modelled", *("1,200", "us") * 3, "1.00"]
    assert "xla-shardy: 2 kernels have no estimate, and count as nothing" in lines
    assert "meshbridge: 2.5% of the modelled time is in loops and branches without collectives, by their kernels" in lines
    assert [line for line in lines if "does not fit" in line] == [
        f"{name} does not fit: a device has 17.2 GB of memory" for name in ("meshbridge", "xla-gspmd")
    ]


def test_a_contestant_that_fails_is_a_column(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes nobody else with it; the exit status says whether ours is well."""
    abort = "sys.stderr.write('I1122 a log\\nF1121 07:00:00 tpu.cc:7] Check failed: chips\\n'); sys.stderr.flush(); os.abort()"
    children(monkeypatch, f"if asked['contestant'] == 'xla-gspmd': {abort}\n" + leaving(FOUND))
    assert cli.main(["compare", str(program), "--target", V5E]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    assert captured.out.splitlines()[-1] == "xla-gspmd failed: ended by SIGABRT: F1121 07:00:00 tpu.cc:7] Check failed: chips"
    assert captured.out.count("failed") > 10
    children(monkeypatch, f"if asked['contestant'] == 'meshbridge': {abort}\n" + leaving(FOUND))
    assert cli.main(["compare", str(program), "--target", V5E]) == 1
    assert "xla-shardy failed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "limit", "error"),
    [
        ("open(HANGS, 'a').write('x'); time.sleep(600)", ("--timeout", "1"), "not done within 1 seconds"),
        ("x = b'x' * 500_000_000; time.sleep(600)", ("--process-memory", "0.25"), "needs more than 0.25 GB of memory"),
    ],
)
def test_limits(
    script: str,
    limit: tuple[str, str],
    error: str,
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They end a process, of which its column tells; a command that needs its result ends with a diagnostic. Time passes where
    a child hangs, and nowhere else."""
    hangs = program.parent / "hangs"
    hangs.touch()
    monkeypatch.setattr(process, "monotonic", lambda: 2.0 * hangs.stat().st_size)
    script = f"HANGS = {str(hangs)!r}\nif asked['contestant'] == 'meshbridge': {script}\n"
    children(monkeypatch, script + leaving(FOUND))
    (found,) = read(capsys, program, "--target", V5E, *limit)["targets"]
    assert [each["error"] for each in found["contestants"]] == [error, "", ""]
    output = program.parent / "out"
    assert cli.main(["compile", str(program), "--target", V5E, "-o", str(output), *limit]) == 1
    assert capsys.readouterr().err == f"{program}: error: target '{V5E}': {error}\n"
    assert not output.exists()


def test_a_process_within_its_limits(tmp_path: Path) -> None:
    assert process.run([sys.executable, "-c", "print(3)"], tmp_path / "errors", Limits(PATIENCE, 1)) == ""


@pytest.mark.slow
def test_nobody_s_child_ends(tmp_path: Path) -> None:
    """A child whose parent is ended ends, too, whatever it does."""
    os.mkfifo(tmp_path / "stream")
    stream = os.open(tmp_path / "stream", os.O_RDONLY | os.O_NONBLOCK)
    script = [
        "import pathlib, time",
        "from meshbridge.tools.compare import process",
        "process.end_with_parent()",
        f"stream = open({str(tmp_path / 'stream')!r}, 'w')",
        f"pathlib.Path({str(tmp_path / 'alive')!r}).touch()",
        "time.sleep(600)",
        "print('done', file=stream)",
    ]
    child = "\n".join(script)
    run = f"process.run([sys.executable, '-c', {child!r}], pathlib.Path({str(tmp_path / 'errors')!r}))"
    code = f"import pathlib, sys\nfrom meshbridge.tools.compare import process\n{run}"
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "alive").exists():
        assert parent.poll() is None, "the child has ended before its parent"
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    os.set_blocking(stream, True)
    assert os.read(stream, 9) == b""  # once nobody has it open any more
    os.close(stream)


def test_compile_writes_what_was_compiled(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children(monkeypatch, leaving(FOUND) + "if asked['keep']: open(folder + '/executable', 'wb').write(b'\\x00code')")
    assert cli.main(["compile", str(program), "--target", H100, "-o", str(program.parent / "out")]) == 0
    assert (program.parent / "out").read_bytes() == b"\x00code"
    assert not capsys.readouterr().err
    partitioned = program.parent / "partitioned.mlir"
    assert cli.main(["partition", str(program), "--emit", "mesh", "-o", str(partitioned)]) == 0
    assert cli.main(["compile", str(partitioned), "--target", H100, "-o", str(program.parent / "out")]) == 0


def test_a_program_that_needs_more_devices(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children(monkeypatch, leaving(FOUND))
    assert cli.main(["compare", str(program), "--target", "tpu:v5e:2x2"]) == 1
    expected = f"{program}: error: mesh @m needs 8 devices, target 'tpu:v5e:2x2' has 4\n"
    assert capsys.readouterr() == ("", expected)


def test_the_environment_of_a_child_is_its_own(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers read it as they start; this process keeps the one that it has."""
    wanted = {"tpu": "TPU_SKIP_MDS_QUERY", "gpu": "TF_CPP_VMODULE"}
    for written in (V5E, H100):
        variable = wanted[written[:3]]
        monkeypatch.delenv(variable, raising=False)
        children(monkeypatch, f"assert os.environ['{variable}'] and os.environ['JAX_PLATFORMS'] == 'cpu'\n" + leaving(FOUND))
        assert cli.main(["compare", str(program), "--target", written, "--json"]) == 0
        assert variable not in command.os.environ


SETS = """
[options.explicit]
xla_enable_async_all_gather = true
xla_some_limit = 3
[options.partitioned]
xla_some_limit = 4
"""
"""What a machine's file may say beside MINE."""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(MINE + SETS)
    return f"gpu:{tmp_path}/mine.toml:1x2x4"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ({}, {}, {})),
        (("--compiler-options", "default"), ({}, {}, {})),
        (
            ("--compiler-options", "best"),
            ({"xla_enable_async_all_gather": True, "xla_some_limit": 3}, *({"xla_some_limit": 4},) * 2),
        ),
        (
            ("--compiler-option", "xla_a=true", "--compiler-option", "xla_b=1.5", "--compiler-option", "xla_c=x=y"),
            ({"xla_a": True, "xla_b": 1.5, "xla_c": "x=y"},) * 3,
        ),
        (
            ("--compiler-options", "best", "--compiler-option", "xla_some_limit=5"),
            ({"xla_enable_async_all_gather": True, "xla_some_limit": 5}, *({"xla_some_limit": 5},) * 2),
        ),
    ],
)
def test_options_of_each_contestant(
    arguments: tuple[str, ...],
    expected: tuple[dict[str, Any], ...],
    mine: str,
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The processes get them, the JSON has them, and the table names those that are not XLA's defaults."""
    asked = program.parent / "asked"
    said = "'best'" if "best" in arguments else "'default'"
    plans = f"assert asked['option_set'] == {said}\n"
    notes = f"open({str(asked)!r}, 'a').write(json.dumps(asked['compiler_options']) + '\\n')\n"
    children(monkeypatch, plans + notes + leaving(FOUND))
    (found,) = read(capsys, program, "--target", mine, *arguments)["targets"]
    assert found["compiler_options"] == dict(zip(command.CONTESTANTS, expected, strict=True))
    assert tuple(map(json.loads, asked.read_text().splitlines())) == expected
    assert cli.main(["compare", str(program), "--target", mine, *arguments]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "is compiled under" in line]
    assert said == [
        f"{name} is compiled under {', '.join(f'{option}={value}' for option, value in options.items())}".replace("True", "true")
        for name, options in zip(command.CONTESTANTS, expected, strict=True)
        if options
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"xla_enable_async_all_gather": True, "xla_some_limit": 3}),
        (("--compiler-options", "default", "--compiler-option", "xla_a=false"), {"xla_a": False}),
    ],
)
def test_options_of_what_is_written(
    arguments: tuple[str, ...], expected: dict[str, Any], mine: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default those under which collectives overlap."""
    children(
        monkeypatch,
        "open(folder + '/executable', 'w').write(json.dumps(asked['compiler_options']))\n" + leaving(Figures()),
    )
    output = program.parent / "out"
    assert cli.main(["compile", str(program), "--target", mine, *arguments, "-o", str(output)]) == 0
    assert json.loads(output.read_text()) == expected


@pytest.mark.parametrize("name", ["partition", "report"])
def test_a_set_of_options_needs_a_device(name: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, str(program), "--compiler-options", "best", "--machine", "bytes"]) != 0
    assert "--compiler-options has no effect on machine 'bytes', which is no device" in capsys.readouterr().err
    assert cli.main([name, str(program), "--compiler-options", "best", "--machine", "v5p:2x2x2"]) == 0
    found = capsys.readouterr()
    assert ("per step on v5p:2x2x2, compiled under its best options" in found.out) == (name == "report")


def test_options_that_a_compiler_does_not_take(
    mine: str, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are nobody's failure: one diagnostic, and no table."""
    children(monkeypatch, "open(folder + '/result.json', 'w').write(json.dumps({'refused': 'XLA does not take xla_foo'}))")
    output = program.parent / "out"
    for name, *more in (("compare",), ("compare", "--json"), ("compile", "-o", str(output))):
        assert cli.main([name, str(program), "--target", mine, "--compiler-option", "xla_foo=true", *more]) == 1
        captured = capsys.readouterr()
        assert captured.err == f"{program}: error: target '{mine}': XLA does not take xla_foo\n"
        assert not captured.out
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", V5E, "--compiler-option", "xla_foo"), "argument --compiler-option: expected NAME=VALUE, found 'xla_foo'"),
        (("--target", V5E, "--compiler-option", "=3"), "argument --compiler-option: expected NAME=VALUE, found '=3'"),
        (("--target", V5E, "--compiler-options", "good"), "argument --compiler-options: invalid choice: 'good'"),
        (("--compiler-options", "best"), "--compiler-options has no effect without --target"),
        (("--compiler-option", "xla_a=1"), "--compiler-option has no effect without --target"),
    ],
)
def test_what_are_no_options(arguments: tuple[str, ...], message: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(program), *arguments]) == console.USAGE
    assert message in capsys.readouterr().err
