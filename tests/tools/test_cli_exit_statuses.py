"""The exit statuses of the commands are those that docs/cli.md lists."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshbridge.tools import cli, console

PROGRAM = """sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) -> tensor<8xf32> {{
  %0 = stablehlo.{op} %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}}
"""

STATUSES = {
    "partition good.mlir -o out.mlir": 0,
    "verify good.mlir": 0,
    "partition absent.mlir": 1,
    "partition bad.mlir": 1,
    "verify good.mlir other.mlir": 1,
    "run inexact.mlir --check --tolerance 1e-300": 1,
    "partition good.mlir --nonsense": console.USAGE,
    "partition good.mlir --json": console.USAGE,
    "nonsense": console.USAGE,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("statuses")
    (folder / "good.mlir").write_text(PROGRAM.format(op="negate"))
    (folder / "other.mlir").write_text(PROGRAM.format(op="abs"))
    (folder / "bad.mlir").write_text(PROGRAM.format(op="nonsense"))
    (folder / "inexact.mlir").write_text(REDUCED)
    return folder


REDUCED = """sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<64xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [1] :
    (tensor<64x512xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
"""


@pytest.mark.parametrize("line", STATUSES)
def test_exit_status(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(line.split()) == STATUSES[line]


SLOW = """
import signal, sys, time
from meshbridge.legalize.legalize import Legalize
from meshbridge.tools import cli
def wait(*arguments):
    print("waiting", flush=True)
    time.sleep(600)
Legalize.run_with = wait
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and all that it starts
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interrupted(folder: Path) -> None:
    """One line, no traceback, and no output."""
    command = [sys.executable, "-c", SLOW, "partition", "good.mlir", "-o", "never.mlir"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.wait() == console.INTERRUPTED
        assert child.stderr.read() == "meshbridge: interrupted\n"
    assert not (folder / "never.mlir").exists()


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    listed = {int(status) for status in re.findall(r"^\| (\d+) \| ", text, re.M)}
    assert listed == {*STATUSES.values(), console.INTERRUPTED}


INTERRUPTED_IMPORT = """
import sys, tomllib

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "jaxlib":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from importlib.metadata import EntryPoint
value = tomllib.load(open("pyproject.toml", "rb"))["project"]["scripts"][sys.argv[1]]
command = EntryPoint(sys.argv[1], value, "console_scripts").load()
sys.argv = sys.argv[1:]
sys.exit(command())
"""


@pytest.mark.parametrize("command", ["meshbridge partition x.mlir", "mesh-opt x.mlir"])
def test_interrupted_while_importing(command: str) -> None:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", INTERRUPTED_IMPORT, *command.split()]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, f"{command.split()[0]}: interrupted\n")
