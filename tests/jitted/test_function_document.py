"""What docs/jit.md shows runs as pasted, in a process of its own with one device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.jitted.jax_tests import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "jit.md"


def test_the_example(tmp_path: Path) -> None:
    block = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert block is not None
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", block[1]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    assert "all_reduce" in done.stdout
    assert "module @jit_step" in done.stdout


def test_the_tests_of_jax_on_the_page() -> None:
    """Those that fail are named, and no others; every file that is run has a row, of which as many fail."""
    page = PAGE.read_text()
    assert dict(re.findall(r"^\| `(\w+\.py::[\w:]+)` \| (.*) \|$", page, re.M)) == KNOWN
    rows = re.findall(r"^\| `(\w+)\.py` \| (\d+) \| (\d+) \|$", page, re.M)
    listed = re.search(r"^JAX_FILES := (.*)$", (PAGE.parents[1] / "Makefile").read_text(), re.M)
    assert listed is not None
    assert sorted(name for name, _, _ in rows) == sorted(listed[1].split())
    for name, plain, partitioned in rows:
        assert int(plain) - int(partitioned) == sum(each.startswith(f"{name}.py::") for each in KNOWN)
