"""Writes a comparison as a table with a column per contestant, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from typing import TYPE_CHECKING, Any, Literal

from meshbridge.analysis.ring import WIRE_BYTES
from meshbridge.machines.machine import OptionValue
from meshbridge.pages.report_page import Versus
from meshbridge.text import size_text, table, visible
from meshbridge.tools.compare.contestants import OURS, PEER
from meshbridge.tools.compare.figures import Figures, Modelled

if TYPE_CHECKING:
    from meshbridge.tools.compare.comparison import Comparison, TargetComparison

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""


def as_json(comparison: Comparison) -> str:
    """The comparison as docs/targets.md describes it."""
    head = {"schema": SCHEMA, "devices": comparison.devices, "reference": comparison.reference, "remark": comparison.remark}
    contestants = {name: _plain(asdict(figures)) for name, figures in comparison.figures.items()}
    return json.dumps(head | {"contestants": contestants}, indent=2, allow_nan=False)


def targets_as_json(comparisons: Sequence[TargetComparison]) -> str:
    """The comparisons on targets as docs/targets.md describes them."""
    records = [
        {
            "target": comparison.target.text,
            "devices": comparison.target.devices,
            "used": comparison.used,
            "program": comparison.program,
            "contestants": [_on_target(name, figures) for name, figures in comparison.figures.items()],
            "compiler_options": comparison.compiler_options,
        }
        for comparison in comparisons
    ]
    return json.dumps({"schema": SCHEMA, "targets": records}, indent=2, allow_nan=False)


def _on_target(name: str, figures: Figures) -> dict[str, Any]:
    """The figures of one contestant that need no run."""
    values = asdict(figures)
    return {"name": name} | {key: values[field] for key, field in TARGET_KEYS.items()}


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
    "plan": "plan",
    "error": "error",
}
"""The keys of the figures in the JSON of a target."""


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """Replaces infinite differences, which JSON cannot express, by the text `inf`."""
    return {key: "inf" if isinstance(value, float) and isinf(value) else value for key, value in figures.items()}


@dataclass(frozen=True)
class FigureRow:
    """A row of the table: its heading, the text of a contestant's figure, and the number for ratios, if they are useful."""

    heading: str
    text: Callable[[Figures], str]
    figure: Callable[[Figures], float] | None = None


def _size(heading: str, figure: Callable[[Figures], float]) -> FigureRow:
    return FigureRow(heading, lambda figures: size_text(figure(figures)), figure)


def _count(heading: str, figure: Callable[[Figures], int]) -> FigureRow:
    return FigureRow(heading, lambda figures: f"{figure(figures):,}", figure)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _of_kind(kind: str) -> FigureRow:
    def text(figures: Figures) -> str:
        wire = figures.bytes_by_kind.get(kind)
        return "-" if wire is None else f"{size_text(wire)} in {figures.count_by_kind[kind]}"

    return FigureRow(f"  {kind}", text)


WIRE = _size("wire bytes", lambda figures: figures.wire_bytes)
SCATTERED = _size("  with reduce-scatters", lambda figures: figures.scattered_bytes)
COUNTS = (
    _count("collectives", lambda figures: figures.collectives),
    _count("  executed in one step", lambda figures: figures.executed_collectives),
)
HIDING = (
    _count("    synchronous", lambda figures: figures.synchronous),
    _count("    asynchronous", lambda figures: figures.asynchronous),
    _size("exposed bytes", lambda figures: figures.exposed_bytes),
    _size("overlapped bytes", lambda figures: figures.overlapped_bytes),
)
TEMPORARY = _size("temporary bytes", lambda figures: figures.temporary_bytes)
WORK = (
    FigureRow("MFLOP", lambda figures: f"{figures.flops / 1e6:,.1f}", lambda figures: figures.flops),
    FigureRow("partition ms", lambda figures: _seconds(figures.partition_seconds)),
    FigureRow("compile ms", lambda figures: _seconds(figures.compile_seconds), lambda figures: figures.compile_seconds),
)
RUN = (
    FigureRow("run ms", lambda figures: _seconds(figures.run_seconds)),
    FigureRow("largest difference", lambda figures: _difference(figures.absolute_difference)),
    FigureRow("  relative", lambda figures: _difference(figures.relative_difference)),
)
MEMORY = (
    _size("argument bytes", lambda figures: figures.argument_bytes),
    _size("output bytes", lambda figures: figures.output_bytes),
    TEMPORARY,
    _size("peak bytes", lambda figures: figures.peak_bytes),
)
MODELLED = (
    FigureRow(
        "modelled",
        lambda figures: _modelled(figures.modelled, "total"),
        lambda figures: figures.modelled.total if figures.modelled else 0,
    ),
    FigureRow("  of it waiting", lambda figures: _modelled(figures.modelled, "wasted")),
)
"""The rows of the tables, of runs and of compilations for a target."""


def _modelled(model: Modelled | None, which: Literal["total", "wasted"]) -> str:
    value = None if model is None else getattr(model, which)
    return "-" if model is None or value is None else f"{value:,.0f} {_UNITS[model.unit]}"


_UNITS = {"cycles": "cycles", "microseconds": "us"}


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells of the table, line by line: a heading, then one for each contestant."""
    every = comparison.figures
    for row in (WIRE, *_kinds(every), SCATTERED, *COUNTS, TEMPORARY, *WORK, *RUN):
        yield _cells(row, every)


def target_rows(comparison: TargetComparison) -> Iterator[tuple[str, ...]]:
    """The cells of one target's table, with a last cell for the ratio of our figure to that of XLA with Shardy."""
    every = comparison.figures
    for row in (WIRE, *_kinds(every), *COUNTS, *HIDING, *MEMORY, *MODELLED, *WORK):
        yield (*_cells(row, every), _ratio(row, every))


def _kinds(every: Mapping[str, Figures]) -> list[FigureRow]:
    return [_of_kind(kind) for kind in WIRE_BYTES if any(kind in figures.bytes_by_kind for figures in every.values())]


def _cells(row: FigureRow, every: Mapping[str, Figures]) -> tuple[str, ...]:
    return (row.heading, *("failed" if figures.error else row.text(figures) for figures in every.values()))


def _ratio(row: FigureRow, every: Mapping[str, Figures]) -> str:
    ours, peer = every[OURS], every.get(PEER)
    if row.figure is None or peer is None or ours.error or peer.error or not row.figure(peer):
        return ""
    return f"{row.figure(ours) / row.figure(peer):.2f}"


def comparison_table(comparison: Comparison) -> str:
    """The table, and remarks below it."""
    drawn = table([("per device", *comparison.figures), *rows(comparison)], left={0}).splitlines()
    return visible("\n".join([*drawn, *_remarks(comparison)]))


def sent(figures: Mapping[str, Figures]) -> str:
    """What a device sends by each contestant: `meshbridge sends 1.0 KB, xla-shardy fails`."""
    return ", ".join(
        f"{name} fails" if contestant.error else f"{name} sends {size_text(contestant.wire_bytes)}"
        for name, contestant in figures.items()
    )


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.remark:
        instead = f"compared with {comparison.reference}" if comparison.reference else "compared with nothing"
        yield f"differences are {instead}: {comparison.remark}"
    yield from _remarks_on(comparison.figures)


def versus(comparison: Comparison) -> Versus:
    """The comparison for a page."""
    heading, names = f"On {comparison.devices} virtual CPU devices", tuple(comparison.figures)
    return Versus(heading, names, tuple(rows(comparison)), _bars(comparison.figures), tuple(_remarks(comparison)))


def target_versus(comparison: TargetComparison) -> Versus:
    """The comparison on one target for a page."""
    names, drawn = (*comparison.figures, "ratio"), tuple(target_rows(comparison))
    return Versus(_target_heading(comparison), names, drawn, _bars(comparison.figures), tuple(_target_remarks(comparison)))


def _bars(figures: Mapping[str, Figures]) -> tuple[tuple[str, float | None], ...]:
    return tuple((name, None if contestant.error else contestant.wire_bytes) for name, contestant in figures.items())


def target_table(comparison: TargetComparison) -> str:
    """The table of one target, and remarks below it."""
    drawn = table([("per device", *comparison.figures, "ratio"), *target_rows(comparison)], left={0}).splitlines()
    return visible("\n".join([_target_heading(comparison), *drawn, *_target_remarks(comparison)]))


def _target_heading(comparison: TargetComparison) -> str:
    target = comparison.target
    return f"{target.text}: {_devices_text(comparison)} of {target.machine.summary}, compiled ahead of time, not run"


def _target_remarks(comparison: TargetComparison) -> Iterator[str]:
    yield f"ratio: {OURS} / {PEER}"
    for name, options in comparison.compiler_options.items():
        if options:
            yield f"{name} is compiled under {', '.join(f'{option}={_as_given(value)}' for option, value in options.items())}"
    room = comparison.target.machine.memory_bytes
    for name, contestant in comparison.figures.items():
        if contestant.peak_bytes > room:
            yield f"{name} does not fit: a device has {size_text(room)} of memory"
    yield from _remarks_on(comparison.figures)


def _as_given(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _devices_text(comparison: TargetComparison) -> str:
    devices = comparison.target.devices
    return f"{devices} devices" if comparison.used == devices else f"the first {comparison.used} of {devices} devices"


def _remarks_on(figures: Mapping[str, Figures]) -> Iterator[str]:
    for name, contestant in figures.items():
        if contestant.error:
            yield f"{name} failed: {contestant.error}"
        if contestant.unmodelled:
            yield f"{name}: what a step takes is not known: {contestant.unmodelled}"
        if contestant.modelled is not None and contestant.modelled.without_estimate:
            unit = "instructions" if contestant.modelled.unit == "cycles" else "kernels"
            yield f"{name}: {contestant.modelled.without_estimate} {unit} have no estimate, and count as nothing"
        if contestant.modelled is not None and contestant.modelled.outside:
            share = contestant.modelled.outside / contestant.modelled.total
            yield f"{name}: {share:.1%} of the modelled time is in loops and branches without collectives, by their kernels"
        if contestant.modelled is not None and contestant.modelled.unit == "microseconds" and contestant.widened_flops:
            share = contestant.widened_flops / contestant.flops
            yield f"{name}: {share:.1%} of its FLOPs make float32 of 16-bit floats, for which the model takes far too long"
        if contestant.unknown_loops:
            yield f"{name}: bodies of {', '.join(contestant.unknown_loops)} counted once, for want of a trip count"
        if contestant.uncounted_calls:
            yield f"{name}: FLOPs without those of calls of {', '.join(contestant.uncounted_calls)}"
