"""What a command shows on a terminal while it works, and that nothing of it is left behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from meshbridge import pipeline
from meshbridge.tools import commands

WALKTHROUGH = Path(__file__).parents[2] / "testdata" / "walkthrough" / "mlp_1d_weight_stationary.mlir"

SLOW = """
import sys
from meshbridge.legalize.legalize import Legalize
from meshbridge.tools import cli, mesh_opt, progress
class Timer:
    "It is over when the pass says so, however long that takes."
    ends = []
    def __init__(self, seconds, function, arguments):
        Timer.ends = [lambda: function(*arguments)]
    def nothing(self):
        pass
    start = cancel = join = nothing
progress.Timer = Timer
fast = Legalize.run_with
def slow(self, module, known):
    while Timer.ends: Timer.ends.pop()()
    print("a line on standard error", file=sys.stderr)
    return fast(self, module, known)
Legalize.run_with = slow
name, *arguments = sys.argv[1:]
sys.exit({"meshbridge": cli.main, "mesh-opt": mesh_opt.main}[name](arguments))
"""
"""The commands with a pass that takes long."""


def shown(*arguments: str | Path, code: str = SLOW) -> tuple[int, str, str]:
    """The exit status of a command, what it wrote on standard output, and on standard error, which is a terminal."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment) as child:
        os.close(terminal)
        written = b""
        while piece := _read(controller):
            written += piece
        assert child.stdout is not None
        out = child.stdout.read()
    os.close(controller)
    return child.returncode, out.decode(), written.decode()


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 4096)
    except OSError:  # Linux's way to say that nobody holds the terminal any more
        return b""


@pytest.mark.parametrize(
    ("arguments", "step", "count"),
    [
        (("meshbridge", "partition", WALKTHROUGH, "-o", os.devnull), "legalizing", "3/9"),
        (("meshbridge", "report", WALKTHROUGH), "legalizing", "3/7"),
        (("meshbridge", "convert", WALKTHROUGH, "--to", "sdy", "--closed"), "converting", "1/3"),
        (("meshbridge", "verify", WALKTHROUGH), "partitioning", "1/3"),
        (("mesh-opt", WALKTHROUGH, "--import-shardings", "--legalize"), "legalize", "1/2"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) and value[0] == "meshbridge" else None,
)
def test_long_work_shows_which_step_runs(arguments: tuple[str | Path, ...], step: str, count: str) -> None:
    status, out, err = shown(*arguments)
    assert status == 0, err
    assert step in err
    assert count in err
    assert step not in out
    assert "a line on standard error" in err
    # Erased after it was last drawn, and the cursor is there again.
    assert err.rindex("\x1b[2K") > err.rindex(count)
    assert err.rindex("\x1b[?25h") > err.rindex("\x1b[?25l")


@pytest.mark.slow
def test_a_comparison_shows_who_is_at_work() -> None:
    at_once = SLOW.replace("progress.Timer = Timer", "progress.SECONDS = 0")
    status, out, err = shown("meshbridge", "compare", WALKTHROUGH, code=at_once)
    assert status == 0, err
    for contestant in ("unsharded", "meshbridge", "xla-shardy", "xla-gspmd"):
        assert contestant in err
    assert "3/4" in err
    assert "relative" in out


def test_it_can_be_left_out() -> None:
    status, _, err = shown("meshbridge", "partition", WALKTHROUGH, "-o", os.devnull, "--quiet")
    assert (status, err) == (0, "a line on standard error\r\n")


def test_short_work_shows_nothing() -> None:
    code = SLOW.replace("while Timer.ends: Timer.ends.pop()()", "pass")
    status, _, err = shown("meshbridge", "partition", WALKTHROUGH, "-o", os.devnull, code=code)
    assert (status, err) == (0, "a line on standard error\r\n")


def test_a_file_gets_nothing() -> None:
    command = [sys.executable, "-c", SLOW, "meshbridge", "partition", str(WALKTHROUGH), "-o", os.devnull]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == "a line on standard error\n"


def test_a_diagnostic_comes_after_it() -> None:
    """An error ends the line first."""
    code = SLOW.replace("return fast(self, module, known)", 'raise __import__("meshbridge").MeshError("error: too much")')
    status, _, err = shown("meshbridge", "partition", WALKTHROUGH, "-o", os.devnull, code=code)
    assert status == 1
    assert err.endswith("error: too much\r\n")
    assert err.rindex("\x1b[2K") < err.rindex("error: too much")


def test_every_stage_has_words() -> None:
    assert [stage.name for stage in pipeline.build().stages] == list(commands._STAGES)
