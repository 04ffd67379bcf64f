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
    """The page names every file that is run."""
    named = re.search(r"Of ten files \((.*?)\)", PAGE.read_text(), re.S)
    listed = re.search(r"^JAX_FILES := (.*)$", (PAGE.parents[1] / "Makefile").read_text(), re.M)
    assert named is not None
    assert listed is not None
    assert sorted(f"{name}_test" for name in re.findall(r"`(\w+)`", named[1])) == sorted(listed[1].split())
