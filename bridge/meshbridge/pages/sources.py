"""Lines of the user's source, as their files are now."""

from __future__ import annotations

import linecache
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

AROUND = 2
"""Lines shown before and after the one that is meant."""

_MOST_CHARACTERS = 200
"""Of a line: generated source has lines that nobody reads."""

_MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class SnippetLine:
    """A line of a file."""

    number: int
    text: str
    is_meant: bool


def snippet(file: str, line: int) -> tuple[SnippetLine, ...]:
    """The lines around `line`, which counts from 1; none where the file cannot be read or is shorter.

    Only Python's source is read, from files and from the cells of notebooks: a program may name any file.
    """
    lines = _lines(file)
    if not 1 <= line <= len(lines):
        return ()
    shown = range(max(line - AROUND, 1), min(line + AROUND, len(lines)) + 1)
    return tuple(SnippetLine(number, lines[number - 1].rstrip()[:_MOST_CHARACTERS], number == line) for number in shown)


def _lines(file: str) -> Sequence[str]:
    path = Path(file)
    try:
        if path.suffix == ".py" and path.is_file():
            found = path.stat()
            return _read(path, (found.st_mtime_ns, found.st_size)) if found.st_size <= _MOST_BYTES else ()
    except (OSError, SyntaxError, ValueError):  # gone, in no encoding that it says, or no name of a file
        return ()
    return linecache.getlines(file) if file in linecache.cache else ()  # cells of notebooks are there and nowhere else


@lru_cache(maxsize=64)
def _read(path: Path, _version: tuple[int, int]) -> tuple[str, ...]:
    with tokenize.open(path) as opened:
        return tuple(opened)
