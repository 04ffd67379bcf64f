"""Golden plans: what has changed of the plans on record.

`make plans` plans every row and prints those that differ from `tests/plans/golden.json`, before → after, with exit status 1 where
there are any; `make plans ARGS=--accept` puts what it found on record. `--without PASS` prints what the rows that the pass
touches are without it, and `--page` does so for each pass, in the table of docs/collective-passes.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.progress import Progress

from benchmarks import marked
from benchmarks.table import geometric_mean
from meshbridge.ir.mlir import MeshError
from tests.plans import golden
from tests.plans.figures import Figures
from tests.plans.measuring import measured
from tests.plans.passes import optional_passes
from tests.plans.rows import MACHINES, PROGRAMS, Row, every_row, part_of

PAGE = Path(__file__).parents[2] / "docs" / "collective-passes.md"
COMMAND = "make plans ARGS=--page"


class _Parser(argparse.ArgumentParser):
    """One line for what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit status 0 where the plans are those on record, 1 where they are not, 2 for what cannot be asked."""
    options = _parse(arguments)
    rows = options.rows
    before = golden.read()
    try:
        if options.page:
            text = "\n".join(_page(rows, before, options.jobs))
            PAGE.write_text(marked.replaced(PAGE, "plans", COMMAND, text))
            return 0
        if options.without:
            rows = [row for row in rows if row.key in before and set(options.without) & set(before[row.key].passes)]
        after = _measure(rows, options.without, options.jobs)
    except MeshError as error:
        print(f"plans: error: {error}", file=sys.stderr)
        return 1
    asked = {row.key for row in rows}
    # A row that nobody plans any more is gone, whatever was asked for.
    planned = {row.key for row in every_row()}
    found = golden.changes({key: each for key, each in before.items() if key in asked or key not in planned}, after)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if found:
        console.print(golden.table(found))
    console.print(f"{len(rows)} plans, {len(found)} changed")
    if options.accept:
        golden.write({key: each for key, each in before.items() if key in planned} | after)
        return 0
    return 1 if found and not options.without else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="plans", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS, metavar="NAME", help="only these programs")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES, metavar="NAME", help="only these machines")
    parser.add_argument("--part", type=_part, default=(0, 1), metavar="K/N", help="only every N-th row, from the K-th")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count(), metavar="N", help="processes beside each other")
    parser.add_argument("--without", nargs="+", choices=optional_passes(), default=(), metavar="PASS", help="leave out passes")
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument("--accept", action="store_true", help="put what is planned on record")
    ending.add_argument("--page", action="store_true", help="write the table of passes")
    options = parser.parse_args(arguments)
    if options.accept and options.without:
        parser.error("argument --accept: not allowed with argument --without")
    options.rows = part_of([row for row in every_row() if _is_asked(row, options)], *options.part)
    if not options.rows:
        parser.error("there is no such row: no plan of these programs for these machines is golden")
    return options


def _part(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part, expected K/N with K below N, as in 0/5")
    return int(number), int(count)


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _is_asked(row: Row, options: argparse.Namespace) -> bool:
    return row.program in options.programs and row.machine in options.machines


def _measure(rows: Sequence[Row], without: Sequence[str], jobs: int) -> dict[str, Figures]:
    """The figures of `rows`, with progress and seconds of CPU time on the standard error stream."""
    found: dict[str, Figures] = {}
    spent, began = 0.0, time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("plans", total=len(rows))
        for each in measured(rows, without, jobs):
            found |= each.figures
            spent += each.seconds
            progress.advance(task, len(each.figures))
    print(f"{spent:.0f} s of CPU time, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


TRIED = 8
"""Of the plans that a pass changes, at most how many are made again without it for the page: evenly among all."""

COMPARED = {"step": "seconds", "wire bytes": "wire_bytes", "collectives": "collectives", "temporaries": "temporary_bytes"}


def _page(rows: Sequence[Row], before: Mapping[str, Figures], jobs: int) -> Iterator[str]:
    """A line for each pass: how many plans it changes, and what those are without it that are tried."""
    yield f"| pass | changes, of {len(rows)} plans | tried | {' | '.join(COMPARED)} | longest step |"
    yield f"|---|---:|---:|{'---:|' * (len(COMPARED) + 1)}"
    for name in optional_passes():
        touched = [row for row in rows if row.key in before and name in before[row.key].passes]
        tried = touched[:: -(-len(touched) // TRIED)] if touched else []
        after = _measure(tried, [name], jobs) if tried else {}
        found = golden.compared({row.key: before[row.key] for row in tried}, after)
        ratios = {heading: list(golden.ratios_of(found, figure)) for heading, figure in COMPARED.items()}
        shown = [f"{geometric_mean(each):.3f}" if each else "" for each in ratios.values()]
        longest = f"{max(ratios['step']):.3f}" if ratios["step"] else ""
        yield f"| `{name}` | {len(touched)} | {len(tried)} | {' | '.join(shown)} | {longest} |"


if __name__ == "__main__":
    sys.exit(main())
