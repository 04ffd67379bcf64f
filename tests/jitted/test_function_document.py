"""What docs/jit.md shows runs as pasted, in a process of its own with one device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
    """Every file that is run has a row, and all of its tests that pass plain pass partitioned: `make test-jax` excepts none."""
    rows = re.findall(r"^\| `(\w+)\.py` \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    listed = re.search(r"^JAX_FILES := (.*)$", (PAGE.parents[1] / "Makefile").read_text(), re.M)
    assert listed is not None
    assert sorted(name for name, _, _ in rows) == sorted(listed[1].split())
    assert all(plain == partitioned for _, plain, partitioned in rows)
