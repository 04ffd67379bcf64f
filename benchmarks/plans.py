"""The hand-derived plans of the programs of `testdata`, step by step: `python -m benchmarks.plans NAME…`; without a name, all."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from testdata.catalogue import MEASURED, build
from testdata.program import Program
from testdata.ring import Term


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


def main(names: Sequence[str]) -> None:
    """The command."""
    print("\n\n".join(map(steps_of, names or MEASURED)))


if __name__ == "__main__":
    main(sys.argv[1:])
