"""Runs every .mlir test under tests/lit through lit, one pytest test each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent / "lit"
NO_TESTS = {"Inputs", "Output"}
"""Folders of what tests read, and of what lit leaves behind."""

FILES = sorted(path for path in ROOT.rglob("*.mlir") if not NO_TESTS & set(path.parts))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lit(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MESHBRIDGE_LIT_OUTPUT": str(tmp_path)}
    command = [str(Path(sys.executable).parent / "lit"), "-v", "--no-progress-bar", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0 and "Passed" in done.stdout) or "Unsupported" in done.stdout, done.stdout + done.stderr
