"""The hand-derived plans as a table for the documentation: `python -m benchmarks.plans` writes `docs/benchmarks.md` anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import marked
from testdata.catalogue import MEASURED, build
from testdata.program import Program
from testdata.ring import Term

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def table() -> str:
    """One row per program and step of its plan."""
    rows = [row for name in MEASURED for row in _rows(build(name))]
    return "\n".join(["| program | mesh | KB per device | step | why |", "|---|---|---:|---|---|", *rows])


def _rows(program: Program) -> Iterator[str]:
    mesh = ", ".join(f"{name} {size}" for name, size in program.axes)
    yield f"| **{program.name}** | {mesh} | **{program.ideal_bytes / 1e3:.1f}** | | |"
    for term in program.ideal:
        if term.times:
            yield f"| | | {term.wire_bytes / 1e3:.1f} | {_step(term)} | {term.why} |"


def _step(term: Term) -> str:
    times = f"{term.times} x " if term.times > 1 else ""
    return f"{times}{term.kind}({term.group}) of {term.size:.0f} B"


def refreshed() -> str:
    """The page with the table made anew."""
    return marked.replaced(PAGE, "plans", "python -m benchmarks.plans", table())


if __name__ == "__main__":
    PAGE.write_text(refreshed())
