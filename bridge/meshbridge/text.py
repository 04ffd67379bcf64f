"""Text for people: tables, sizes of memory, times, and names from programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from difflib import get_close_matches
from html import escape
from io import StringIO
from typing import TypeVar

KindT = TypeVar("KindT", bound=type)


def visible(text: str, keep: str = "\n") -> str:
    r"""`text` with invisible characters as Python escapes, `\x1b` or `\u202e`, except those in `keep`.

    Names, paths and locations of a program may contain any character. Terminals obey control characters, and bidirectional
    overrides reorder the surrounding text.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode() for letter in text
    )


def quoted(text: str) -> str:
    """`text` as a Python literal between double quotes, on one line and `visible`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(escaped, keep="")}"'


def joined(lines: Iterable[str]) -> str:
    """Lines, each `visible`, joined by newlines."""
    return "\n".join(visible(line, keep="") for line in lines)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'report'?`, the end of the error for an unknown `name`, if one of `names` is close to it; else
    empty."""
    near = get_close_matches(name, list(names), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def size_text(size: float) -> str:
    """`260 B`, `98.3 KB`, `1,234.5 GB`: bytes up to 1,000, then one decimal in KB, MB or GB."""
    if size < 999.5:
        return f"{size:.0f} B"
    for unit in ("KB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def time_text(seconds: float) -> str:
    """`260 us`, `98.3 ms`, `1,234.5 s`: whole microseconds up to 1,000, then one decimal."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.99995 else f"{seconds:,.1f} s"


def counted(number: int, noun: str) -> str:
    """`1 collective`, `1,234 collectives`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def spec_text(split: Iterable[Sequence[str]], *more: str) -> str:
    """`P("data", None)`, as JAX writes it, from the axes of each dimension, followed by `more`."""
    entries = (f"({', '.join(axes)})" if len(axes) > 1 else axes[0] if axes else "None" for axes in split)
    return f"P({', '.join((*entries, *more))})"


def table(rows: Sequence[Sequence[str]], *, left: Container[int]) -> str:
    """Rows in columns as wide as their widest entry. Columns with numbers in `left` are aligned to the left, others to the right.
    Each entry is on one line, and is `visible`."""
    from rich.console import Console  # takes a tenth of a second, which only printed tables need
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for number in range(len(rows[0])):
        drawn.add_column(justify="left" if number in left else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*(visible(entry, keep="") for entry in row))
    out = StringIO()
    console = Console(file=out, width=_WIDEST, color_system=None, highlight=False, markup=False, emoji=False, force_jupyter=False)
    console.print(drawn)  # in a notebook it would display the table instead, were it not for the last option
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


_WIDEST = 10_000
"""The width at which a table is cut: terminals wrap lines, and a file has no width."""


def public(kind: KindT) -> KindT:
    """A class that tracebacks, reprs and pickles call by the name that `meshbridge` exports it by."""
    kind.__module__ = "meshbridge"
    return kind


class Tabular(ABC):
    """A result for people: `str()` and a notebook's cell show its table, `repr()` one line, `to_json()` is for programs."""

    @abstractmethod
    def table(self) -> str:
        """The result as text."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The result in a few words."""

    @abstractmethod
    def to_json(self) -> str:
        """The result as JSON, with exact figures."""

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {visible(self.headline, keep='')}>"

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return f"<pre>{escape(self.table())}</pre>"
