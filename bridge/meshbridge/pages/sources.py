"""Reads lines of the user's source from the present files."""

from __future__ import annotations

import linecache
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

AROUND = 2
"""Lines shown before and after the requested one."""

_MOST_CHARACTERS = 200
"""The most characters of a line: generated source has very long ones."""

_MOST_BYTES = 4_000_000


@dataclass(frozen=True)
class SnippetLine:
    """A line of a file."""

    number: int
    text: str
    is_meant: bool


def snippet(file: str, line: int) -> tuple[SnippetLine, ...]:
    """The lines around `line`, which counts from 1; empty if the file cannot be read or is shorter.

    Only Python source is read, from files and from the cells of notebooks, because a program may name any file.
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
            status = path.stat()
            return _read(path, (status.st_mtime_ns, status.st_size)) if status.st_size <= _MOST_BYTES else ()
    except (OSError, SyntaxError, ValueError):  # the file is gone, has another encoding than declared, or an invalid name
        return ()
    return linecache.getlines(file) if file in linecache.cache else ()  # has the cells of notebooks


@lru_cache(maxsize=64)
def _read(path: Path, _version: tuple[int, int]) -> tuple[str, ...]:
    with tokenize.open(path) as opened:
        return tuple(opened)
