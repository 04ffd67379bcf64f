"""The pages of the documentation, and a run of what one of them shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import documents
from tests.house import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}


def run_blocks(text: str, name: str, folder: Path, python: str | Path = sys.executable, *, write: bool = False) -> str:
    """Runs the blocks of a page as a reader does: in `folder`, on a machine of one device. Returns the page, with output blocks
    as they should be where it is to `write` them."""
    page = folder / name
    page.write_text(text)
    bin_folder = str(Path(python).parent)
    left_out = ("JAX_PLATFORMS", "PYTHONPATH", "XLA_FLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment["PATH"] = os.pathsep.join((bin_folder, environment["PATH"]))
    command = [str(python), documents.__file__, *(["--write"] if write else []), name]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return page.read_text()
