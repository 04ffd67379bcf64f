"""What continuous integration runs in an hour, and what it leaves out, with commands that only pretend to take their time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests import conftest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"

NOTHING = "#!/bin/sh\n"
DATE = """#!/bin/sh
cat "$FOLDER/now"
"""
MAKE = """#!/bin/bash
echo "$1" >> "$FOLDER/made"
echo $(($(cat "$FOLDER/now") + $(cat "$FOLDER/seconds/${1//\\//-}" 2>/dev/null || echo 0))) > "$FOLDER/now"
[ ! -e "$FOLDER/fails/${1//\\//-}" ] || { [ -z "${MESHBRIDGE_FAILURES:-}" ] || echo a test > "$MESHBRIDGE_FAILURES"; exit 2; }
"""
TIMEOUT = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
end=$(($(cat "$FOLDER/now") + $1)) status=0
"${@:2}" || status=$?
[ "$(cat "$FOLDER/now")" -le "$end" ] || { echo "$end" > "$FOLDER/now"; exit 124; }
exit "$status"
"""
COMMANDS = {"date": DATE, "make": MAKE, "timeout": TIMEOUT} | dict.fromkeys(
    ("mlir-opt-19", "mlir-opt-21", "mlir-opt-22", "chromium", "chromedriver"), NOTHING
)

QUICK = {"lint": 60, "docs": 60, "test": 1200, "test-slow": 600, "test-targets": 300, "test-models": 300, "test-codebases": 180}
ALWAYS = ["lint", "docs", "test"]
SUITES = [made for name in ("targets", "models", "codebases") for made in (f".venv-{name}/.ready", f"test-{name}")]
ALL = [*ALWAYS, "test-slow", *SUITES]


class Ran(NamedTuple):
    """What a run has come to."""

    status: int
    made: list[str]
    said: list[str]
    "What was left out, or cut short."
    seconds: int


def run(folder: Path, seconds: Mapping[str, int], fails: tuple[str, ...] = ()) -> Ran:
    """Continuous integration where targets of make take so many seconds, and some fail."""
    for name in ("bin", ".ci", "seconds", "fails"):
        (folder / name).mkdir()
    for name, code in COMMANDS.items():
        (folder / "bin" / name).write_text(code)
        (folder / "bin" / name).chmod(0o755)
    (folder / ".ci" / "run").write_text(SCRIPT.read_text())
    for target, each in seconds.items():
        (folder / "seconds" / target.replace("/", "-")).write_text(str(each))
    for target in fails:
        (folder / "fails" / target.replace("/", "-")).touch()
    began = 1_000_000_000
    (folder / "now").write_text(str(began))
    environment = os.environ | {"FOLDER": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", folder / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("slow tests:")]
    return Ran(done.returncode, (folder / "made").read_text().split(), said, int((folder / "now").read_text()) - began)


def test_all_runs_where_there_is_time(tmp_path: Path) -> None:
    assert run(tmp_path, QUICK) == Ran(0, ALL, [], 2700)


def test_what_does_not_fit_into_the_hour_is_left_out(tmp_path: Path) -> None:
    """It takes half of `make test`, or a quarter: a part that is shorter may fit where a longer one does not."""
    ran = run(tmp_path, {target: 2 * seconds for target, seconds in QUICK.items()})
    assert (ran.status, ran.made) == (0, [*ALWAYS, ".venv-targets/.ready", "test-targets"])
    assert ran.said == [
        "left out: make test-slow PART=4/5, as 44 minutes are gone",
        "left out: make test-models, as 54 minutes are gone",
        "left out: make test-codebases, as 54 minutes are gone",
    ]
    assert ran.seconds <= 3600


def test_lint_the_site_and_the_tests_are_never_left_out(tmp_path: Path) -> None:
    ran = run(tmp_path, {target: 10 * seconds for target, seconds in QUICK.items()})
    assert (ran.status, ran.made) == (0, ALWAYS)
    assert [line.partition(",")[0] for line in ran.said] == [
        "left out: make test-slow PART=4/5",
        "left out: make test-targets",
        "left out: make test-models",
        "left out: make test-codebases",
    ]


def test_a_part_that_takes_longer_than_the_hour_is_cut_short(tmp_path: Path) -> None:
    ran = run(tmp_path, QUICK | {"test-slow": 9000})
    assert (ran.status, ran.made) == (0, [*ALWAYS, "test-slow"])
    assert ran.said[0] == "cut short: make test-slow PART=4/5, as 59 minutes are gone"
    assert [line.partition(",")[0] for line in ran.said[1:]] == [
        f"left out: make test-{name}" for name in ("targets", "models", "codebases")
    ]
    assert ran.seconds <= 3600


@pytest.mark.parametrize("target", [*ALWAYS, "test-slow", "test-targets", "test-models", "test-codebases"])
@pytest.mark.parametrize("seconds", [0, 9000], ids=["in time", "cut short"])
def test_what_fails_fails_the_run(target: str, seconds: int, tmp_path: Path) -> None:
    """A part that is cut short after one of its tests has failed fails the run, too."""
    ran = run(tmp_path, QUICK | {target: seconds}, (target,))
    assert ran.status != 0
    assert ran.made[-1] == target


def test_what_cannot_be_installed_is_left_out(tmp_path: Path) -> None:
    ran = run(tmp_path, QUICK, (".venv-targets/.ready",))
    assert (ran.status, ran.made) == (0, [made for made in ALL if made != "test-targets"])
    assert ran.said == ["left out: make test-targets, as what it needs cannot be installed here"]


def test_what_has_failed_is_named_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(conftest.FAILURES, str(tmp_path / "failures"))
    for name in ("one", "two"):
        report: Any = SimpleNamespace(failed=name == "two", nodeid=name)
        conftest.pytest_runtest_logreport(report)
    assert (tmp_path / "failures").read_text() == "two\n"
