"""Prints a report as a table of collectives, modules of the model, or source lines, followed by totals and remarks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from meshbridge.analysis.origins import Origin, Phase
from meshbridge.cost.by_module import ModuleTraffic
from meshbridge.cost.communication import Collective
from meshbridge.ir.locations import SourceLocation
from meshbridge.ir.mlir import MeshError
from meshbridge.ops.reasons import CHOSEN_HERE
from meshbridge.text import did_you_mean, joined, size_text, table, time_text

if TYPE_CHECKING:
    from meshbridge.reports.report import Report

By = Literal["collective", "module", "line"]
"""The rows of a table."""

WIDTH = 120
"""The columns in which reasons are written."""

LEAST = 0.01
"""The table of collectives omits modules below this share of the wire bytes."""


def report_table(report: Report, by: By = "collective") -> str:
    """See `Report.table`. Raises MeshError for another value of `by`."""
    if by not in get_args(By):
        near = did_you_mean(str(by), get_args(By))
        raise MeshError(f"error: by is {by!r}, expected one of {', '.join(get_args(By))}{near}")
    rows = {"collective": _by_collective, "module": _by_module, "line": _by_line}[by]
    sent = [said] if (said := unsharded(report)) else [*rows(report), _sent(report)]
    return joined([*sent, *_totals(report), *_attention(report), *_suggestions(report)])


def unsharded(report: Report) -> str:
    """Why there is nothing to communicate, if no argument and no result is sharded over devices; else empty."""
    if report.collectives:
        return ""
    if not report.mesh.named_axes:
        return "nothing is sharded: the program names no mesh, and runs on one device"
    if report.mesh.size == 1:
        return "nothing is sharded: the mesh has one device"
    if any(any(array.sharding) or array.unreduced for array in (*report.arguments, *report.results)):
        return ""
    return f"nothing is sharded: each of the {report.mesh.size} devices computes the whole program"


class _TableRow(NamedTuple):
    """The attributes that the collectives of a row share."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    wire_bytes: float
    seconds: float | None
    where: str
    why: str
    requested_by: str


def _by_collective(report: Report) -> Iterator[str]:
    """One row for equal collectives of one source line, most bytes first, with the reason; then the modules of most traffic."""
    executions: Counter[_TableRow] = Counter()
    for collective in report.collectives:
        head = (collective.kind, collective.axes, collective.group_size, collective.wire_bytes, collective.seconds)
        executions[_TableRow(*head, _where(collective), collective.why, collective.asked)] += collective.executions
    ordered = sorted(executions.items(), key=lambda item: -item[0].wire_bytes * item[1])
    header = ("collective", "axes", "devices", "each", "executed", "wire bytes", "share", *_time_header(report), "where")
    rows = [_collective_row(report, row, count) for row, count in ordered]
    header_line, *drawn = table([header, *rows], left={0, 1, len(header) - 1}).splitlines()
    yield header_line
    for text, (row, _) in zip(drawn, ordered, strict=True):
        yield text
        if row.why:
            yield from _reason_lines(row.why, "" if row.requested_by == CHOSEN_HERE else row.requested_by)
    if report.modules.modules:
        yield from ("", *_by_module(report, LEAST), "")


def _reason_lines(why: str, requested_by: str) -> Iterator[str]:
    """The reason for a collective, and who asked for it, on a line of its own if both are wider than a page."""
    line = f"    {why} ({requested_by})" if requested_by else f"    {why}"
    if len(line) <= WIDTH:
        yield line
        return
    for text in filter(None, (why, requested_by)):
        yield from wrap(
            text, WIDTH, initial_indent="    ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
        )


def _collective_row(report: Report, row: _TableRow, count: int) -> tuple[str, ...]:
    total = row.wire_bytes * count
    sizes = (size_text(row.wire_bytes), f"{count:,}", size_text(total), _share(total, report))
    times = _times(report, None if row.seconds is None else row.seconds * count)
    return (row.kind, ",".join(row.axes) or "-", str(row.group_size), *sizes, *times, row.where)


def _where(collective: Collective) -> str:
    """The user's line; for combined collectives, the first of them and the number of the others."""
    if not collective.origins:
        return str(collective.location)
    location, *hidden_locations = dict.fromkeys(origin.location for origin in collective.origins)
    return f"{location}{f' and {len(hidden_locations)} more' if hidden_locations else ''}"


def _by_module(report: Report, least: float = 0.0) -> Iterator[str]:
    """The tree of modules. Modules below the share `least` are only counted."""
    whole = report.modules
    phases = [phase for phase in get_args(Phase) if whole.by_phase.get(phase)]
    shown = [("the program", whole), *_nested_modules(whole)]
    listed = [(name, module) for name, module in shown if module is whole or module.share >= least]
    header = ("module", "wire bytes", "share", *phases, "collectives", *_time_header(report))
    yield from table([header, *(_module_row(report, *entry, phases) for entry in listed)], left={0}).splitlines()
    if left_out := len(shown) - len(listed):
        yield f"{left_out} more module{'' if left_out == 1 else 's'} of less than {least:.0%} each"


def _nested_modules(module: ModuleTraffic, depth: int = 1) -> Iterator[tuple[str, ModuleTraffic]]:
    """The modules within one, indented. A module whose only traffic comes from one child is merged with that child."""
    for inner in module.modules:
        while len(inner.modules) == 1 and not inner.own_bytes:
            (inner,) = inner.modules
        yield "  " * depth + "/".join(inner.path[len(module.path) :]), inner
        yield from _nested_modules(inner, depth + 1)


def _module_row(report: Report, name: str, module: ModuleTraffic, phases: Iterable[str]) -> tuple[str, ...]:
    by_phase = (size_text(module.by_phase[phase]) if module.by_phase.get(phase) else "-" for phase in phases)
    sizes = (size_text(module.wire_bytes), _share(module.wire_bytes, report), *by_phase)
    return (name, *sizes, f"{module.executions:,}", *_times(report, module.seconds))


def _by_line(report: Report) -> Iterator[str]:
    """Lines of the user's source, most bytes first."""
    parts: dict[SourceLocation, list[tuple[Collective, Origin]]] = defaultdict(list)
    for collective in report.collectives:
        for origin in collective.origins:
            parts[origin.location].append((collective, origin))
    rows = sorted((_line_of(entry) for entry in parts.items()), key=lambda line: -line.wire_bytes)
    header = ("where", "wire bytes", "share", "collectives", *_time_header(report), "phases", "modules")
    drawn = [
        (
            *(str(line.where), size_text(line.wire_bytes), _share(line.wire_bytes, report), f"{line.executions:,}"),
            *(*_times(report, line.seconds), ", ".join(line.phases), line.modules),
        )
        for line in rows
    ]
    yield from table([header, *drawn], left={0, len(header) - 2, len(header) - 1}).splitlines()


class _TableLine(NamedTuple):
    where: SourceLocation
    wire_bytes: float
    executions: int
    seconds: float | None
    phases: tuple[str, ...]
    modules: str


def _line_of(entry: tuple[SourceLocation, list[tuple[Collective, Origin]]]) -> _TableLine:
    where, parts = entry
    times = [collective.total_seconds for collective, _ in parts]
    modules, *hidden_modules = dict.fromkeys("/".join(origin.modules) or "-" for _, origin in parts)
    return _TableLine(
        where,
        sum(collective.total_bytes * origin.share for collective, origin in parts),
        sum({id(collective): collective.executions for collective, _ in parts}.values()),
        None if None in times else sum((seconds or 0.0) * part[1].share for seconds, part in zip(times, parts, strict=True)),
        tuple(dict.fromkeys(origin.phase for _, origin in parts)),
        f"{modules}{f' and {len(hidden_modules)} more' if hidden_modules else ''}",
    )


def _time_header(report: Report) -> tuple[str, ...]:
    return () if report.step is None else ("time",)


def _times(report: Report, seconds: float | None) -> tuple[str, ...]:
    if report.step is None:
        return ()
    return ("-" if seconds is None else time_text(seconds),)


def _share(wire: float, report: Report) -> str:
    return f"{wire / report.wire_bytes:.1%}" if report.wire_bytes else "-"


def _sent(report: Report) -> str:
    kinds = ", ".join(f"{kind} {size_text(wire)}" for kind, wire in report.bytes_by_kind().items())
    started = f"{report.executions:,} collective{'' if report.executions == 1 else 's'}"
    return f"{size_text(report.wire_bytes)} on the wire per device and step, in {started}{f': {kinds}' if kinds else ''}"


def _totals(report: Report) -> Iterable[str]:
    redundant = report.redundant_work
    for unit, kind in (("FLOPs of dot products and convolutions", "contractions"), ("elements of other arithmetic", "elements")):
        device = getattr(report.work, kind)
        line = f"{device:,.0f} {unit} per device"
        if redundant is not None and device:
            redundant_amount = max(getattr(redundant, kind), 0.0)  # simplification may remove work
            line += f", {redundant_amount:,.0f} of them redundant ({redundant_amount / device:.1%})"
        yield line
    memory = report.memory
    parts = (f"{part} {size_text(getattr(memory, part))}" for part in ("arguments", "results", "temporaries"))
    donated = f", less {size_text(memory.donated)} of donated arguments" if memory.donated else ""
    yield f"about {size_text(memory.peak)} of memory per device: {', '.join(parts)}{donated}"
    if (step := report.step) is not None:
        exposed = f"{time_text(step.communication_seconds)}, of it exposed {time_text(step.exposed_seconds)}"
        times = f"computing {time_text(step.compute_seconds)}, communication {exposed}"
        used = "" if report.mfu is None else f", MFU {report.mfu:.1%}"
        under = ", compiled under its best options" if report.compiler_options == "best" else ""
        yield f"about {time_text(step.seconds)} per step on {step.target.text}{under}: {times}{used}"
    if (rate := report.tokens_per_second) is not None:
        yield f"about {rate:,.0f} tokens per second, {rate / report.mesh.size:,.1f} per device"


def remarks_on(report: Report) -> Iterable[str]:
    """What deserves attention, one sentence each."""
    if said := unsharded(report):
        yield said
    yield from _attention(report)


def _attention(report: Report) -> Iterable[str]:
    if report.unpredicted:
        yield f"no step is predicted, and the plan is made for the device alone: {report.unpredicted}"
    if report.why_machine and report.needed_work is not None:
        yield f"planned for machine {report.machine}: {report.why_machine}"
    if report.step is not None and report.peak_bytes > (room := report.step.target.machine.memory_bytes):
        yield f"does not fit: a device of {report.step.target.text} has {size_text(room)} of memory"
    for op, count in Counter(report.not_partitioned).items():
        yield f"not partitioned: {op.operation} at {op.location}{f', {count} times' if count > 1 else ''}"
    for at in report.unknown_loops:
        yield f"counted once, for want of a trip count: the loop at {at}"
    for choice in report.unknown_branches:
        which = f"branch {choice.branch} of {choice.branches}"
        yield f"counted by its most expensive branch, {which}: {choice.operation} at {choice.location}"


def _suggestions(report: Report) -> Iterable[str]:
    if not report.tried:
        return
    plural = "" if report.tried == 1 else "s"
    yield f"what to change, of {report.tried} change{plural} tried, each by partitioning the program again:"
    if not report.suggestions:
        yield "  nothing that saves as much as 1%"
    for number, suggestion in enumerate(report.suggestions, 1):
        figures = [_changed("wire bytes", suggestion.wire_bytes, report.wire_bytes, size_text)]
        if suggestion.seconds is not None and report.seconds is not None:
            figures.append(_changed("step", suggestion.seconds, report.seconds, time_text))
        figures.append(_changed("memory", suggestion.peak_bytes, report.peak_bytes, size_text))
        yield f"  {number}. {suggestion.change}"
        yield f"     {', '.join(figures)}"


def _changed(name: str, now: float, before: float, text: Callable[[float], str]) -> str:
    """`wire bytes 2.0 KB instead of 4.0 KB (-50%)`"""
    share = f"{now / before - 1:+.0%}" if before else "-"
    return f"{name} {text(now)} instead of {text(before)} ({share})"
