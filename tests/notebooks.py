"""Executes a notebook of the documentation, and compares what its cells show.

python -m tests.notebooks NOTEBOOK            executes it in a fresh folder, and fails if a cell fails or shows something else
python -m tests.notebooks --write NOTEBOOK    the same, and writes what the cells show into the notebook

A cell with the tag `varies` shows figures of a run, such as milliseconds: it has to run, and to show something.
"""

from __future__ import annotations

import difflib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TIMEOUT = 600
"""Seconds that a cell may take."""


def executed(path: Path) -> Any:
    """The notebook with what its cells show now. Raises nbclient's CellExecutionError for a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata = nbformat.from_dict({"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}})
    return notebook


def shown(notebook: Any) -> Iterator[str]:
    """What the cells show, line by line, with a heading for each cell."""
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        yield f"cell {number + 1}"
        if "varies" in cell.metadata.get("tags", []):
            yield "something" if cell.outputs else "nothing"
            continue
        for output in cell.outputs:
            for _, text in (("", output.get("text", "")), *sorted(output.get("data", {}).items())):
                yield from str(text).splitlines()


def differences(path: Path) -> list[str]:
    """How what the cells show now differs from what the notebook has."""
    found, stored = executed(path), nbformat.read(path, as_version=4)
    return list(difflib.unified_diff([*shown(stored)], [*shown(found)], "stored", "shown", lineterm=""))


def main(arguments: Sequence[str]) -> int:
    path = Path(arguments[-1])
    if arguments[0] == "--write":
        nbformat.write(executed(path), path)
        return 0
    lines = differences(path)
    print("\n".join(lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
