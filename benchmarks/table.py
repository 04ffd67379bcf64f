"""The one table: a row per program and contestant, figures side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

from benchmarks.measure import Measurement
from meshbridge.text import table


@dataclass(frozen=True)
class Column:
    """A heading and how to write a measurement under it."""

    heading: str
    text: Callable[[Measurement], str]


def _kilobytes(size: float) -> str:
    return f"{size / 1e3:.1f}" if size else "-"


def _kind(kind: str) -> Callable[[Measurement], str]:
    return lambda m: _kilobytes(m.bytes_by_kind.get(kind, 0))


def _stage(stage: str, unit: float) -> Callable[[Measurement], str]:
    return lambda m: f"{m.seconds[stage] * unit:.1f}" if stage in m.seconds else "-"


def waste(wire_bytes: float, ideal_bytes: float) -> float:
    """How many times the ideal; 1 where neither sends anything."""
    if ideal_bytes:
        return wire_bytes / ideal_bytes
    return float("inf") if wire_bytes else 1.0


COLUMNS = (
    Column("program", lambda m: m.program),
    Column("by", lambda m: m.contestant),
    Column("wire KB", lambda m: _kilobytes(m.wire_bytes)),
    Column("rs-adj", lambda m: _kilobytes(m.scattered_bytes)),
    Column("ideal", lambda m: _kilobytes(m.ideal_bytes)),
    Column("waste", lambda m: f"{waste(m.wire_bytes, m.ideal_bytes):.2f}"),
    Column("(rs-adj)", lambda m: f"{waste(m.scattered_bytes, m.ideal_bytes):.2f}"),
    Column("AR", _kind("all-reduce")),
    Column("AG", _kind("all-gather")),
    Column("RS", _kind("reduce-scatter")),
    Column("A2A", _kind("all-to-all")),
    Column("CP", _kind("collective-permute")),
    Column("colls", lambda m: f"{m.collectives}/{m.executed_collectives}"),
    Column("temp KB", lambda m: _kilobytes(m.temporary_bytes)),
    Column("MFLOP", lambda m: f"{m.flops / 1e6:.1f}"),
    Column("partition ms", _stage("partition", 1e3)),
    Column("cpu ms", _stage("partition-cpu", 1e3)),
    Column("2nd cpu ms", _stage("second-cpu", 1e3)),
    Column("sdy-prop ms", _stage("sdy-propagation", 1e3)),
    Column("compile s", _stage("compile", 1)),
    Column("run ms", _stage("run", 1e3)),
    Column("error", lambda m: f"{m.relative_error:.0e}" + (" WRONG" if m.failed else "")),
)

_NAMES = (0, 1)
"""Columns that hold names."""


def render(measurements: Sequence[Measurement]) -> str:
    """The table, the summary of each contestant, and the time of each pass where a contestant shows them."""
    parts = [_rows(measurements), _summary(measurements), _passes(measurements)]
    return "\n\n".join(part for part in parts if part)


def _rows(measurements: Sequence[Measurement]) -> str:
    cells = [[column.text(m) for column in COLUMNS] for m in measurements if not m.error]
    figures = table([[column.heading for column in COLUMNS], *cells], left=_NAMES)
    failed = [f"{m.program} by {m.contestant} failed: {m.error}" for m in measurements if m.error]
    loops = [
        f"{m.program} by {m.contestant}: bodies of {', '.join(m.unknown_loops)} counted once"
        for m in measurements
        if m.unknown_loops
    ]
    return "\n".join([figures, *failed, *loops])


def _summary(measurements: Sequence[Measurement]) -> str:
    """Per contestant, the geometric mean of the waste over its programs that send anything in the ideal plan."""
    lines = []
    for name in dict.fromkeys(m.contestant for m in measurements):
        done = [m for m in measurements if m.contestant == name and not m.error and m.ideal_bytes and m.wire_bytes]
        if done:
            plain = geometric_mean([m.wire_bytes / m.ideal_bytes for m in done])
            scattered = geometric_mean([m.scattered_bytes / m.ideal_bytes for m in done])
            lines.append(
                f"{name}: {plain:.2f} times the ideal in the geometric mean over {len(done)} programs (rs-adj {scattered:.2f})"
            )
    return "\n".join(lines)


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _passes(measurements: Sequence[Measurement]) -> str:
    timed = [m for m in measurements if m.pass_seconds]
    names = list(dict.fromkeys(name for m in timed for name in m.pass_seconds))
    if not timed:
        return ""
    rows = [["ms per pass", "", *names]]
    rows += [[m.program, "", *(f"{m.pass_seconds.get(name, 0) * 1e3:.1f}" for name in names)] for m in timed]
    return table(rows, left=_NAMES)
