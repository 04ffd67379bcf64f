"""Cells of notebooks: their code is in files with temporary names, of which people know the number in front of the cell.

IPython tells the number of each file in its own process. Elsewhere, as in a file that a notebook has saved, a cell has a hash.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

_TEMPORARY = re.compile(r".*[/\\]ipykernel_\d+[/\\](?P<hash>\d+)\.py|<ipython-input-(?P<number>\d+)-(?:\w+)>")
"""The files of cells: those of Jupyter's kernel, and those of IPython in a terminal."""

_NAME = re.compile(r"cell \d+|unnumbered cell \d+")


def name_of(file: str) -> str:
    """`cell 3` for the file of a cell, `unnumbered cell 12345` if this process has not run it; any other file as it is."""
    temporary = _TEMPORARY.fullmatch(file)
    if temporary is None:
        return file
    number = _numbers().get(file, temporary["number"])
    return f"unnumbered cell {temporary['hash']}" if number is None else f"cell {number}"


def file_of(name: str) -> str:
    """The file of a cell that this process has run; any other name as it is."""
    return next((file for file in _numbers() if is_cell(name) and name_of(file) == name), name)


def is_cell(name: str) -> bool:
    """Whether a name is one that `name_of` gives to cells."""
    return _NAME.fullmatch(name) is not None


def _numbers() -> Mapping[str, int]:
    """The numbers of the cells that this process has run, by their files."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(getattr(shell, "compile", None), "_filename_map", {})  # nothing public tells; tracebacks of IPython read it
