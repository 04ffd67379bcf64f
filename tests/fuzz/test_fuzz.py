"""Mutants of every kind of program end in success or in a diagnostic; and what finds the others, finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("testdata/rfc", "testdata/walkthrough", "tests/lit/converters")
ROOT = Path(__file__).parents[2]


def fuzz(keep: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", "--keep", str(keep), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_mutants_of_shardings(kind: str, tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--kind", kind, "--count", "25", "--command", "convert {} --to mesh", *PROGRAMS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_of_other_formats(tmp_path: Path) -> None:
    written = [option for name in SPELLINGS for option in ("--written-as", name)]
    done = fuzz(tmp_path, "--count", "25", *written, "testdata/walkthrough", "testdata/rfc")
    assert done.returncode == 0, done.stdout + done.stderr


SPELLINGS = ("llvm19", "llvm21", "llvm22", "rfc", "portable")
EVERYTHING = ("testdata/rfc", "testdata/walkthrough", "tests/lit")
MANY = {
    "text": ("6000", "--kind", "text", *EVERYTHING),
    "bytes": ("1500", "--kind", "bytes", *EVERYTHING),
    "other formats": ("2000", *(option for name in SPELLINGS for option in ("--written-as", name)), *EVERYTHING),
}
"""Ten thousand mutants, with the five hundred of artifacts below: how many, and of what."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", MANY)
def test_many_mutants(name: str, tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--seed", "7", "--count", *MANY[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_many_mutants_of_artifacts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.artifacts", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    done = fuzz(tmp_path / "kept", "--seed", "7", "--count", "500", "--command", "convert {} --to mesh", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


ENDS = {
    "os.abort()": "ended by SIGABRT",
    "time.sleep(900)": "did not end within 1 s",
    "raise KeyError": "wrote a traceback",
    "print('x: internal error: KeyError'); return 1": "ended in an internal error",
    "return 1": "wrote no diagnostic",
    "open(output, 'w').write('x'); print('x: error: a'); return 1": "left output behind",
    "return 0": "succeeded without output",
    "return 3": "ended with exit status 3",
    "print('x: error: a'); return 1": "",
    "open(output, 'w').write(open(path).read()); return 0": "",
}
"""What a command may do with its input and output, and what the harness says of it."""


@pytest.mark.slow
def test_what_counts_as_a_fault() -> None:
    lines = ["import os, sys, time", "from tests.fuzz import runner", "runner.SECONDS = 1"]
    for body in ENDS:
        lines.append(f"runner.PATIENCE = {1 if 'sleep' in body else 60}")
        lines += ["def ends(arguments):", "    path, _, output = arguments", f"    {body}"]
        lines.append('print(runner.run(["{}"], b"good", ends).fault)')
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(ENDS.values())
