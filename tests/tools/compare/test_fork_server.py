"""Children of one process: it imports once, and each child's end, limits and output are its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.tools.compare import process
from meshbridge.tools.compare.process import NO_LIMITS, Limits

CHILDREN = "tests.tools.compare.children"


def test_one_process_imports_for_all(tmp_path: Path) -> None:
    written = tmp_path / "written"
    lines = []
    with process.forking(CHILDREN, {**os.environ, "WRITTEN": "yes"}) as run:
        for _ in range(3):
            assert run(["write", str(written)], tmp_path / "errors", NO_LIMITS) == ""
            lines.append(written.read_text().split())
    imported, own, parents, said = zip(*lines, strict=True)
    assert len({*imported, *parents}) == 1
    assert len({*own, *parents}) == 4
    assert {*said} == {"yes"}


def test_each_end_is_told_and_harms_no_other_child(tmp_path: Path) -> None:
    with process.forking(CHILDREN) as run:
        ends = {
            what: run([what, *more], tmp_path / "errors", NO_LIMITS)
            for what, *more in (["abort"], ["kill"], ["exit", "7"], ["raise"], ["write", str(tmp_path / "written")])
        }
    assert ends == {
        "abort": "ended by SIGABRT: F1121 07:00:00 spmd.cc:7] Check failed: sharding",
        "kill": "ended by SIGKILL, as the system does where memory is short: it said nothing",
        "exit": "ended with status 7: it said nothing",
        "raise": "ended with status 1: ValueError: not so",
        "write": "",
    }


def test_limits_end_a_child_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes where a child hangs, and nowhere else."""
    hangs = tmp_path / "hangs"
    hangs.touch()
    monkeypatch.setattr(process, "monotonic", lambda: 1000.0 * bool(hangs.read_text()))
    with process.forking(CHILDREN) as run:
        assert run(["hang", str(hangs)], tmp_path / "errors", Limits(900, 100)) == "not done within 900 seconds"
        pid = int(hangs.read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        hangs.write_text("")
        filled = run(["fill", "2000000000"], tmp_path / "errors", Limits(None, 1.5))
        assert filled == "needs more than 1.5 GB of memory"
        assert run(["write", str(tmp_path / "written")], tmp_path / "errors", Limits(900, 100)) == ""


def test_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    with (
        process.forking("tests.no_such_module") as run,
        pytest.raises(MeshError, match=r"no process can be started: .*no_such_module"),
    ):
        run([], tmp_path / "errors", NO_LIMITS)


@pytest.mark.slow
def test_server_and_child_end_with_their_parent(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    code = (
        "import pathlib\nfrom meshbridge.tools.compare import process\n"
        f"with process.forking({CHILDREN!r}) as run:\n"
        f"    run(['hang', {str(hangs)!r}], pathlib.Path({str(tmp_path / 'errors')!r}), process.NO_LIMITS)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not hangs.exists() or not hangs.read_text():
        assert parent.poll() is None, "the parent has ended first"
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    child = Path(f"/proc/{hangs.read_text()}")
    while child.exists() and "Z" not in (child / "stat").read_text().rpartition(")")[2].split()[0]:
        time.sleep(0.05)
