"""The report for people, as tables, and for programs, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from meshbridge.cost.communication import Collective
from meshbridge.ir.locations import SourceLocation
from meshbridge.report import Report
from meshbridge.tools.sizes import size_text

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""

HEADER = ("collective", "axes", "devices", "each", "executed", "wire bytes", "where")
TEXT_COLUMNS = {"collective", "axes", "where"}


def as_json(report: Report) -> str:
    """The report as docs/report.md describes it; collectives in program order."""
    counts = report.count_by_kind()
    whole = {
        "schema": SCHEMA,
        "mesh": {
            "axes": dict(report.mesh.named_axes),
            "devices": report.mesh.size,
        },
        "wire_bytes": report.wire_bytes,
        "by_kind": {
            kind: {"wire_bytes": wire, "collectives": counts[kind], "executions": _executions(report, kind)}
            for kind, wire in report.bytes_by_kind().items()
        },
        "collectives": [_entry(collective) for collective in report.collectives],
        "work": {
            "device": asdict(report.work),
            "needed": None if report.needed_work is None else asdict(report.needed_work),
            "redundant": None if report.redundant_work is None else asdict(report.redundant_work),
        },
        "memory": asdict(report.memory) | {"peak": report.memory.peak},
        "not_partitioned": [{"operation": op.operation, "location": _location(op.location)} for op in report.not_partitioned],
        "unknown_loops": [_location(at) for at in report.unknown_loops],
        "unknown_branches": [
            {
                "operation": choice.operation,
                "branch": choice.branch,
                "branches": choice.branches,
                "location": _location(choice.location),
            }
            for choice in report.unknown_branches
        ],
    }
    return json.dumps(whole, indent=2)


def _entry(collective: Collective) -> dict[str, Any]:
    return {
        "kind": collective.kind,
        "axes": list(collective.axes),
        "group_size": collective.group_size,
        "wire_bytes": collective.wire_bytes,
        "executions": collective.executions,
        "total_bytes": collective.total_bytes,
        "location": _location(collective.location),
        "why": collective.why,
    }


def _location(at: SourceLocation) -> dict[str, Any]:
    return {"file": at.file, "line": at.line, "column": at.column, "function": at.function}


def _executions(report: Report, kind: str) -> int:
    return sum(collective.executions for collective in report.collectives if collective.kind == kind)


def as_table(report: Report) -> str:
    """Equal collectives of one source line together, most bytes first, each with its reason; then totals, work and memory, then
    what deserves a look.
    """
    times: Counter[Collective] = Counter()
    for entry in report.collectives:
        times[replace(entry, executions=1)] += entry.executions
    ordered = sorted(times.items(), key=lambda item: -item[0].wire_bytes * item[1])
    header, *lines = _aligned([HEADER, *(_row(entry, count) for entry, count in ordered)])
    reasons = (f"    {entry.why}" for entry, _ in ordered)
    explained = [text for pair in zip(lines, reasons, strict=True) for text in pair if text.strip()]
    return "\n".join([header, *explained, *_totals(report), *_remarks(report)])


def _row(entry: Collective, count: int) -> tuple[str, ...]:
    numbers = (size_text(entry.wire_bytes), f"{count:,}", size_text(entry.wire_bytes * count))
    return (entry.kind, ",".join(entry.axes) or "-", str(entry.group_size), *numbers, str(entry.location))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Columns as wide as their widest entry; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if name in TEXT_COLUMNS else cell.rjust(width)
            for name, cell, width in zip(HEADER, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _totals(report: Report) -> Iterable[str]:
    kinds = ", ".join(f"{kind} {size_text(wire)}" for kind, wire in report.bytes_by_kind().items())
    started = f"{report.executions:,} collective{'' if report.executions == 1 else 's'}"
    yield f"{size_text(report.wire_bytes)} on the wire per device and step, in {started}{f': {kinds}' if kinds else ''}"
    redundant = report.redundant_work
    for unit, kind in (("FLOPs of dot products and convolutions", "contractions"), ("elements of other arithmetic", "elements")):
        device = getattr(report.work, kind)
        line = f"{device:,.0f} {unit} per device"
        if redundant is not None and device:
            more = max(getattr(redundant, kind), 0.0)  # simplification may leave less to compute than there was
            line += f", {more:,.0f} of them redundant ({more / device:.1%})"
        yield line
    memory = report.memory
    parts = (f"{part} {size_text(getattr(memory, part))}" for part in ("arguments", "results", "temporaries"))
    yield f"about {size_text(memory.peak)} of memory per device: {', '.join(parts)}"


def _remarks(report: Report) -> Iterable[str]:
    for op, count in Counter(report.not_partitioned).items():
        yield f"not partitioned: {op.operation} at {op.location}{f', {count} times' if count > 1 else ''}"
    for at in report.unknown_loops:
        yield f"counted once, for want of a trip count: the loop at {at}"
    for choice in report.unknown_branches:
        which = f"branch {choice.branch} of {choice.branches}"
        yield f"counted by its most expensive branch, {which}: {choice.operation} at {choice.location}"
