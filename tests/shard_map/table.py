"""Writes the parts of `docs/shard-map.md` that follow from the code: the example's program, and the table of operations.

From the repository's root, with 8 devices: `python -m tests.shard_map.table`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from meshbridge.ir.registry import Registry

PAGE = Path(__file__).parents[2] / "docs" / "shard-map.md"

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)

_TABLE = "## Operations\n"


def blocks(page: str) -> list[str]:
    """The page's program, what is written of it, and how that is called."""
    return _BLOCK.findall(page)


def example(page: str) -> str:
    """What the page's program writes, run in the current folder."""
    exec(compile(blocks(page)[0], "model.py", "exec"), defined := dict[str, Any]())
    assert defined
    return Path("step.py").read_text()


def operations() -> str:
    """The section with the table."""
    from meshbridge.lowering.shard_map import program
    from meshbridge.lowering.shard_map.table import WRITINGS
    from tests.operations.samples import SAMPLES
    from tests.shard_map.test_operations import REFUSED

    assert program
    run = [sample for sample in SAMPLES if sample.runs]
    lines = [
        _TABLE,
        f"{len(WRITINGS)} operations are written as they are. The mesh dialect's others, and what [status](status.md) lists as",
        f"legalized, are rewritten to these before. Of the {len(run)} samples of ops that run in JAX, all are written on even",
        f"shards, and all but {', '.join(REFUSED)} on uneven ones, and equal one device (`tests/shard_map/test_operations.py`).",
        "",
        "| op | written as |",
        "|---|---|",
        *(f"| {', '.join(f'`{name}`' for name in names)} | {text} |" for text, names in _rows(WRITINGS).items()),
    ]
    return "\n".join(lines) + "\n"


def _rows(writings: Registry[str, Any]) -> dict[str, list[str]]:
    """What is said of ops, with their names."""
    rows: dict[str, list[str]] = {}
    for name, text in writings.summaries().items():
        rows.setdefault(text, []).append(name)
    return rows


def page(written: str) -> str:
    """The page as the code says it should be; `written` is what the example's program writes."""
    before = PAGE.read_text().partition(_TABLE)[0]
    old = blocks(before)[1]
    return before.replace(old, written) + operations()


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    here = Path.cwd()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = example(PAGE.read_text())
    os.chdir(here)
    PAGE.write_text(page(made))
