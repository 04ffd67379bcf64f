"""Writes the parts of `docs/shard-map.md` that follow from the code: the example's program, and the operations that are written.

From the repository's root: `python -m tests.emit.python.table`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests import documents

PAGE = Path(__file__).parents[3] / "docs" / "shard-map.md"

REFUSED = ("stablehlo.select_and_scatter",)
"""Samples that have an op without equivalent in JAX: this one is cut up by hand where shards are uneven."""

_TABLE = "## Operations\n"


def example(text: str, folder: Path) -> str:
    """What the program of the page writes, run as a reader does, in `folder`."""
    program = next(block.code for block in documents.blocks(text) if block.runs and block.kind == "python")
    (folder / "model.py").write_text(program)
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    subprocess.run([sys.executable, "model.py"], cwd=folder, env=environment, check=True)
    return (folder / "step.py").read_text()


def operations() -> str:
    """The section with the table."""
    from meshbridge.emit.python import program
    from meshbridge.emit.python.table import WRITINGS
    from tests.operations.samples import SAMPLES

    assert program
    run = [sample for sample in SAMPLES if sample.runs]
    dialects = Counter(name.partition(".")[0] for name in WRITINGS.summaries())
    counts = ", ".join(f"{count} of `{dialect}`" for dialect, count in dialects.items())
    lines = [
        _TABLE,
        f"{len(WRITINGS)} operations are written as they are ({counts}), as the docstrings in `emit/python/` say.",
        "Others of the mesh dialect, and ops that [status](status.md) lists as legalized, are rewritten to these before.",
        f"Of the {len(run)} samples of ops that run in JAX, all are written on even shards, and all but {', '.join(REFUSED)}",
        "on uneven ones, and equal one device (`tests/emit/python/test_table.py`).",
    ]
    return "\n".join(lines) + "\n"


def page(written: str) -> str:
    """The page as the code says it should be; `written` is what the example's program writes."""
    before = PAGE.read_text().partition(_TABLE)[0]
    old = next(block.code for block in documents.blocks(before) if block.title == "step.py")
    return before.replace(old, written) + operations()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(example(PAGE.read_text(), Path(folder))))
