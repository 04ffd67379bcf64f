"""The hand-derived plans as a table for the documentation: `python -m benchmarks.plans` writes `docs/benchmarks.md` anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from testdata.catalogue import MEASURED, build
from testdata.program import Program
from testdata.ring import Term

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- plans: begin (python -m benchmarks.plans) -->", "<!-- plans: end -->"


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


def refreshed(page: str) -> str:
    """`page` with the table between its two marks made anew. Raises ValueError if it has no marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"expected '{BEGIN}' and '{END}' in {PAGE.name}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
