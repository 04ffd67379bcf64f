"""The comparison for people, as a table with a column per contestant, and for programs, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from typing import Any, Literal

from meshbridge.analysis.ring import WIRE_BYTES
from meshbridge.machines.machine import OptionValue
from meshbridge.pages.report_page import Versus
from meshbridge.text import size_text, table
from meshbridge.tools import console
from meshbridge.tools.compare.command import Comparison, TargetComparison
from meshbridge.tools.compare.contestants import OURS, PEER
from meshbridge.tools.compare.figures import Figures, Modelled

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""


def as_json(comparison: Comparison) -> str:
    """The comparison as docs/report.md describes it."""
    head = {"schema": SCHEMA, "devices": comparison.devices, "reference": comparison.reference, "remark": comparison.remark}
    contestants = {name: _plain(asdict(found)) for name, found in comparison.figures.items()}
    return json.dumps(head | {"contestants": contestants}, indent=2, allow_nan=False)


def targets_as_json(comparisons: Sequence[TargetComparison]) -> str:
    """The comparisons on targets as docs/report.md describes them."""
    found = [
        {
            "target": each.target.text,
            "devices": each.target.devices,
            "used": each.used,
            "contestants": [_on_target(name, figures) for name, figures in each.figures.items()],
            "compiler_options": each.compiler_options,
        }
        for each in comparisons
    ]
    return json.dumps({"schema": SCHEMA, "targets": found}, indent=2, allow_nan=False)


def _on_target(name: str, figures: Figures) -> dict[str, Any]:
    """Without what only a run tells."""
    known = asdict(figures)
    return {"name": name} | {key: known[field] for key, field in TARGET_KEYS.items()}


TARGET_KEYS = {
    "wire_bytes": "wire_bytes",
    "bytes_by_kind": "bytes_by_kind",
    "bytes_by_element": "bytes_by_element",
    "count_by_kind": "count_by_kind",
    "executed": "executed_collectives",
    "synchronous": "synchronous",
    "asynchronous": "asynchronous",
    "exposed_bytes": "exposed_bytes",
    "overlapped_bytes": "overlapped_bytes",
    "argument_bytes": "argument_bytes",
    "output_bytes": "output_bytes",
    "temporary_bytes": "temporary_bytes",
    "peak_bytes": "peak_bytes",
    "modelled": "modelled",
    "unmodelled": "unmodelled",
    "flops": "flops",
    "widened_flops": "widened_flops",
    "partition_seconds": "partition_seconds",
    "compile_seconds": "compile_seconds",
    "unknown_loops": "unknown_loops",
    "uncounted_calls": "uncounted_calls",
    "error": "error",
}
"""What the JSON of a target calls the figures."""


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for an infinite difference: it becomes the text `inf`."""
    return {key: "inf" if isinstance(value, float) and isinf(value) else value for key, value in figures.items()}


@dataclass(frozen=True)
class FigureRow:
    """A heading and how to write a contestant's figure beside it; ratios are made of `figure`, where they say something."""

    heading: str
    text: Callable[[Figures], str]
    figure: Callable[[Figures], float] | None = None


def _size(heading: str, figure: Callable[[Figures], float]) -> FigureRow:
    return FigureRow(heading, lambda found: size_text(figure(found)), figure)


def _count(heading: str, figure: Callable[[Figures], int]) -> FigureRow:
    return FigureRow(heading, lambda found: f"{figure(found):,}", figure)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _of_kind(kind: str) -> FigureRow:
    def text(found: Figures) -> str:
        wire = found.bytes_by_kind.get(kind)
        return "-" if wire is None else f"{size_text(wire)} in {found.count_by_kind[kind]}"

    return FigureRow(f"  {kind}", text)


WIRE = _size("wire bytes", lambda found: found.wire_bytes)
SCATTERED = _size("  with reduce-scatters", lambda found: found.scattered_bytes)
COUNTS = (
    _count("collectives", lambda found: found.collectives),
    _count("  executed in one step", lambda found: found.executed_collectives),
)
HIDING = (
    _count("    synchronous", lambda found: found.synchronous),
    _count("    asynchronous", lambda found: found.asynchronous),
    _size("exposed bytes", lambda found: found.exposed_bytes),
    _size("overlapped bytes", lambda found: found.overlapped_bytes),
)
TEMPORARY = _size("temporary bytes", lambda found: found.temporary_bytes)
WORK = (
    FigureRow("MFLOP", lambda found: f"{found.flops / 1e6:,.1f}", lambda found: found.flops),
    FigureRow("partition ms", lambda found: _seconds(found.partition_seconds)),
    FigureRow("compile ms", lambda found: _seconds(found.compile_seconds), lambda found: found.compile_seconds),
)
RUN = (
    FigureRow("run ms", lambda found: _seconds(found.run_seconds)),
    FigureRow("largest difference", lambda found: _difference(found.absolute_difference)),
    FigureRow("  relative", lambda found: _difference(found.relative_difference)),
)
MEMORY = (
    _size("argument bytes", lambda found: found.argument_bytes),
    _size("output bytes", lambda found: found.output_bytes),
    TEMPORARY,
    _size("peak bytes", lambda found: found.peak_bytes),
)
MODELLED = (
    FigureRow(
        "modelled", lambda found: _modelled(found.modelled, "total"), lambda found: found.modelled.total if found.modelled else 0
    ),
    FigureRow("  of it waiting", lambda found: _modelled(found.modelled, "wasted")),
)
"""The rows of the tables: of what runs here, and of what is compiled for a target."""


def _modelled(found: Modelled | None, which: Literal["total", "wasted"]) -> str:
    value = None if found is None else getattr(found, which)
    return "-" if found is None or value is None else f"{value:,.0f} {_UNITS[found.unit]}"


_UNITS = {"cycles": "cycles", "microseconds": "us"}


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells of the table, line by line: a heading, then one for each contestant."""
    every = comparison.figures
    for row in (WIRE, *_kinds(every), SCATTERED, *COUNTS, TEMPORARY, *WORK, *RUN):
        yield _cells(row, every)


def target_rows(comparison: TargetComparison) -> Iterator[tuple[str, ...]]:
    """The same of one target, with a last cell for our figure over that of XLA with Shardy."""
    every = comparison.figures
    for row in (WIRE, *_kinds(every), *COUNTS, *HIDING, *MEMORY, *MODELLED, *WORK):
        yield (*_cells(row, every), _ratio(row, every))


def _kinds(every: Mapping[str, Figures]) -> list[FigureRow]:
    return [_of_kind(kind) for kind in WIRE_BYTES if any(kind in found.bytes_by_kind for found in every.values())]


def _cells(row: FigureRow, every: Mapping[str, Figures]) -> tuple[str, ...]:
    return (row.heading, *("failed" if found.error else row.text(found) for found in every.values()))


def _ratio(row: FigureRow, every: Mapping[str, Figures]) -> str:
    ours, peer = every[OURS], every.get(PEER)
    if row.figure is None or peer is None or ours.error or peer.error or not row.figure(peer):
        return ""
    return f"{row.figure(ours) / row.figure(peer):.2f}"


def print_table(comparison: Comparison) -> None:
    """Prints the table on standard output, and below it what needs saying."""
    console.say(table([("per device", *comparison.figures), *rows(comparison)], left={0}))
    for line in _remarks(comparison):
        console.say(line)


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.remark:
        instead = f"compared with {comparison.reference}" if comparison.reference else "compared with nothing"
        yield f"differences are {instead}: {comparison.remark}"
    yield from _remarks_on(comparison.figures)


def versus(comparison: Comparison) -> Versus:
    """The comparison as a page shows it."""
    heading, names = f"On {comparison.devices} virtual CPU devices", tuple(comparison.figures)
    return Versus(heading, names, tuple(rows(comparison)), _bars(comparison.figures), tuple(_remarks(comparison)))


def target_versus(comparison: TargetComparison) -> Versus:
    """The same of one target."""
    names, drawn = (*comparison.figures, "ratio"), tuple(target_rows(comparison))
    return Versus(_target_heading(comparison), names, drawn, _bars(comparison.figures), tuple(_target_remarks(comparison)))


def _bars(figures: Mapping[str, Figures]) -> tuple[tuple[str, float | None], ...]:
    return tuple((name, None if found.error else found.wire_bytes) for name, found in figures.items())


def print_target_table(comparison: TargetComparison) -> None:
    """The same of one target."""
    console.say(_target_heading(comparison))
    console.say(table([("per device", *comparison.figures, "ratio"), *target_rows(comparison)], left={0}))
    for line in _target_remarks(comparison):
        console.say(line)


def _target_heading(comparison: TargetComparison) -> str:
    target = comparison.target
    return f"{target.text}: {_devices_text(comparison)} of {target.machine.summary}, compiled ahead of time, not run"


def _target_remarks(comparison: TargetComparison) -> Iterator[str]:
    yield f"ratio: {OURS} / {PEER}"
    for name, options in comparison.compiler_options.items():
        if options:
            yield f"{name} is compiled under {', '.join(f'{option}={_as_given(value)}' for option, value in options.items())}"
    room = comparison.target.machine.memory_bytes
    for name, found in comparison.figures.items():
        if found.peak_bytes > room:
            yield f"{name} does not fit: a device has {size_text(room)} of memory"
    yield from _remarks_on(comparison.figures)


def _as_given(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _devices_text(comparison: TargetComparison) -> str:
    there = comparison.target.devices
    return f"{there} devices" if comparison.used == there else f"the first {comparison.used} of {there} devices"


def _remarks_on(figures: Mapping[str, Figures]) -> Iterator[str]:
    for name, found in figures.items():
        if found.error:
            yield f"{name} failed: {found.error}"
        if found.unmodelled:
            yield f"{name}: what a step takes is not known: {found.unmodelled}"
        if found.modelled is not None and found.modelled.without_estimate:
            what = "instructions" if found.modelled.unit == "cycles" else "computations"
            yield f"{name}: {found.modelled.without_estimate} {what} have no estimate, and count as nothing"
        if found.modelled is not None and found.modelled.unit == "microseconds" and found.widened_flops:
            share = found.widened_flops / found.flops
            yield f"{name}: {share:.1%} of its FLOPs make float32 of 16-bit floats, for which the model takes far too long"
        if found.unknown_loops:
            yield f"{name}: bodies of {', '.join(found.unknown_loops)} counted once, for want of a trip count"
        if found.uncounted_calls:
            yield f"{name}: FLOPs without those of calls of {', '.join(found.uncounted_calls)}"
