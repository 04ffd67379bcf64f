"""What a command shows on a terminal while it works, and that nothing of it is left behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshbridge import conversion, pipeline, progress
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.partitioning import partition_module
from meshbridge.read.formats import copy_module
from meshbridge.sharding_search.request import SearchRequest
from meshbridge.sharding_search.search import best_of
from meshbridge.tools import commands
from meshbridge.verification.verdict import verify

WALKTHROUGH = Path(__file__).parents[1] / "testdata" / "walkthrough" / "mlp_1d_weight_stationary.mlir"

SLOW = """
import sys
from meshbridge.legalize.legalize import Legalize
from meshbridge import progress
from meshbridge.tools import cli, mesh_opt
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


class Line:
    """A line that keeps what is drawn."""

    def __init__(self, steps: progress.WorkSteps) -> None:
        self.steps, self.drawn = steps, [(steps.text, steps.count, steps.times)]

    def update(self) -> None:
        self.drawn.append((self.steps.text, self.steps.count, self.steps.times))

    def stop(self) -> None:
        self.drawn.append(("", "", ""))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still."""
    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock.seconds)
    return clock


def watched(names: tuple[str, ...], *, alike: bool = False) -> tuple[progress.WorkSteps, Line]:
    steps = progress.WorkSteps(names, alike=alike)
    steps._show(Line)  # type: ignore[arg-type]
    assert isinstance(steps._line, Line)
    return steps, steps._line


def test_the_share_of_a_step_says_how_long_the_rest_takes(now: SimpleNamespace) -> None:
    steps, line = watched(("reading", "verifying"))
    now.seconds += 3
    steps.done("reading")
    steps.part(0.0, "run 1 of 4")
    now.seconds += 30
    steps.part(0.25, "run 2 of 4")
    assert steps.completed == 1.25
    now.seconds += 10
    steps._end()
    assert line.drawn == [
        ("reading", "0/2", "0 s"),
        ("verifying", "1/2", "3 s"),
        ("verifying: run 1 of 4", "1/2", "3 s"),
        ("verifying: run 2 of 4", "1/2", "33 s, about 1 min 30 s left"),
        ("", "", ""),
    ]
    assert steps.times == "43 s, about 1 min 20 s left"


def test_steps_that_are_alike_say_how_long_the_others_take(now: SimpleNamespace) -> None:
    steps, line = watched(("unsharded", "meshbridge", "xla-shardy"), alike=True)
    now.seconds += 5
    steps.done("unsharded")
    now.seconds += 7
    steps.done("meshbridge")
    assert [times for _, _, times in line.drawn] == ["0 s", "5 s, about 10 s left", "12 s, about 6 s left"]


def test_a_verification_says_how_far_it_is() -> None:
    module = conversion.read(WALKTHROUGH.read_bytes(), "walkthrough").module
    partitioned = copy_module(module)
    partition_module(partitioned)
    said: list[tuple[float, str]] = []
    verdict = verify(module, partitioned, on_progress=lambda share, text: said.append((share, text)))
    assert verdict == verify(module, partitioned)
    shares, texts = zip(*said, strict=True)
    assert list(shares) == sorted(shares)
    assert 0 == shares[0] < shares[-1] < 1
    runs = len(verdict.primes)
    assert texts[0] == f"run 1 of {runs}, the source, operation 0"
    assert texts[-1].startswith(f"run {runs} of {runs}, the partitioned program, operation ")


def test_a_search_says_what_it_has() -> None:
    module = conversion.read(WALKTHROUGH.read_bytes(), "walkthrough").module
    said: list[tuple[float, str]] = []
    request = SearchRequest(CompileTarget.of("h100:1x1x2"), seconds=5.0)
    best_of(module, [None], request, on_progress=lambda share, text: said.append((share, text)))
    assert said[0][1].startswith("1 plan tried, the best takes ")
    assert ", no other less than " in said[-1][1]
    assert all(share > 0 for share, _ in said)


def test_tries_are_counted() -> None:
    said: list[tuple[float, str]] = []
    assert [*progress.each("abcd", lambda share, text: said.append((share, text)))] == [*"abcd"]
    assert said == [(0.0, "1 of 4"), (0.25, "2 of 4"), (0.5, "3 of 4"), (0.75, "4 of 4")]


def test_a_notebook_shows_it_in_the_output_of_the_cell(now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            drawn.append(data["text/plain"])

    def display(data: dict[str, str], **named: Any) -> Handle:
        drawn.append(data["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with progress.in_session("searching") as steps:
        steps.part(0.1, "1 plan tried")  # too early
        now.seconds += 5
        steps.part(0.5, "2 plans tried")
        steps.part(0.6, "3 plans tried")  # too soon after it
        now.seconds += 1
        steps.part(0.75, "4 plans tried")
    assert drawn == [
        "searching: 2 plans tried  0/1  5 s, about 5 s left",
        "searching: 4 plans tried  0/1  6 s, about 2 s left",
        "",
    ]


def test_a_script_shows_nothing(now: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    with progress.in_session("searching") as steps:
        now.seconds += 60
        steps.part(0.5, "2 plans tried")
        assert steps._line is None
    assert capfd.readouterr() == ("", "")
