"""A communication report for people, as a table, and for programs, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from meshbridge.analysis.communication import Collective, Report

HEADER = ("collective", "axes", "devices", "bytes each", "times", "bytes", "where")
TEXT_COLUMNS = {"collective", "axes", "where"}


def as_json(report: Report) -> str:
    """The whole report, one object per collective in program order."""
    whole = asdict(report) | {"wire_bytes": report.wire_bytes}
    return json.dumps(whole, indent=2)


def as_table(report: Report) -> str:
    """One line for equal collectives of one source line, most bytes first; then the totals, then what was not partitioned."""
    times: Counter[Collective] = Counter()
    for entry in report.collectives:
        times[replace(entry, executions=1)] += entry.executions
    ordered = sorted(times.items(), key=lambda item: -item[0].wire_bytes * item[1])
    rows = [HEADER, *(_row(entry, count) for entry, count in ordered)]
    total = f"{report.wire_bytes:,.0f} bytes on the wire per device and run, in {times.total():,} collectives"
    return "\n".join([*_aligned(rows), total, *_gathered(report)])


def _row(entry: Collective, count: int) -> tuple[str, ...]:
    numbers = (f"{entry.wire_bytes:,.0f}", f"{count:,}", f"{entry.wire_bytes * count:,.0f}")
    return (entry.kind, str(list(entry.axes)), str(entry.group_size), *numbers, entry.location)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Columns as wide as their widest entry; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if name in TEXT_COLUMNS else cell.rjust(width)
            for name, cell, width in zip(HEADER, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _gathered(report: Report) -> Iterable[str]:
    for (name, location), count in Counter(report.gathered).items():
        yield f"not partitioned: {name} at {location}{f', {count} times' if count > 1 else ''}"
