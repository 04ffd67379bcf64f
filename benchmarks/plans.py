"""The hand-derived plans: `python -m benchmarks.plans` writes a row for each into `docs/benchmarks.md`.

`python -m benchmarks.plans NAME…` prints every step of the plans of these programs, and why it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import marked
from testdata.catalogue import MEASURED, build
from testdata.program import Program
from testdata.ring import Term

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def table() -> str:
    """One row per program: the bytes of its plan, how many steps that has, and the one that sends most."""
    rows = [_row(build(name)) for name in MEASURED]
    return "\n".join(["| program | mesh | KB per device | steps | the largest |", "|---|---|---:|---:|---|", *rows])


def _row(program: Program) -> str:
    steps = [term for term in program.ideal if term.times]
    largest = max(steps, key=lambda term: term.wire_bytes, default=None)
    shown = f"{_step(largest)}: {largest.why}" if largest else "nothing is sent"
    return f"| {program.name} | {_mesh(program)} | {program.ideal_bytes / 1e3:.1f} | {len(steps)} | {shown} |"


def steps_of(name: str) -> str:
    """Every step of a program's plan, with its bytes and its reason."""
    program = build(name)
    lines = [f"  {term.wire_bytes / 1e3:10.1f} KB  {_step(term)}: {term.why}" for term in program.ideal if term.times]
    return "\n".join([f"{name}, {_mesh(program)}: {program.ideal_bytes / 1e3:.1f} KB per device", *lines])


def _mesh(program: Program) -> str:
    return ", ".join(f"{name} {size}" for name, size in program.axes)


def _step(term: Term) -> str:
    times = f"{term.times} x " if term.times > 1 else ""
    return f"{times}{term.kind}({term.group}) of {term.size:.0f} B"


def refreshed() -> str:
    """The page with the table made anew."""
    return marked.replaced(PAGE, "plans", "python -m benchmarks.plans", table())


def main(names: Sequence[str]) -> None:
    """The command."""
    if names:
        print("\n\n".join(map(steps_of, names)))
    else:
        PAGE.write_text(refreshed())


if __name__ == "__main__":
    main(sys.argv[1:])
