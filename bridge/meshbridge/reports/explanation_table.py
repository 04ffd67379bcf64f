"""Prints an explanation of shardings as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meshbridge.reports.changes import spec_of
from meshbridge.reports.difference_table import has_times, more_text, share_text
from meshbridge.reports.families import without_numbers
from meshbridge.text import joined, size_text, table, time_text

if TYPE_CHECKING:
    from meshbridge.reports.difference import Change, Difference
    from meshbridge.reports.explanation import Alternative, Decider, Explained, Explanation
    from meshbridge.reports.report import Report

MODULES = 3
"""The most modules whose changes are listed."""


def explanation_table(explanation: Explanation) -> str:
    """See `Explanation.table`."""
    return joined(
        [line for explained in explanation.explained for line in _explained_lines(explained, explanation.report)]
        + list(_plan(explanation))
    )


def _plan(explanation: Explanation) -> Iterator[str]:
    report = explanation.report
    step = "" if report.step is None else f", about {time_text(report.step.seconds)} per step on {report.step.target.text}"
    tried = explanation.tried
    count = f"{tried} other sharding{'' if tried == 1 else 's'} tried, each by partitioning the program again"
    yield f"the plan: {size_text(report.wire_bytes)} on the wire, {size_text(report.peak_bytes)} of memory{step}; {count}"
    yield from explanation.remarks()


def _explained_lines(explained: Explained, report: Report) -> Iterator[str]:
    type_ = f"{explained.element_type}[{', '.join(map(str, explained.shape))}]"
    yield f"{explained.name}, {type_}: {spec_of(explained.sharding, explained.unreduced)}"
    for decider in explained.deciders:
        yield f"  {decider.by}{_decided_names(decider, explained)}"
    if report.wire_bytes:
        yield f"  {size_text(explained.exposed_bytes)} of {size_text(report.wire_bytes)} on the wire are about it"
    feasible = [alternative for alternative in explained.others if alternative.difference is not None]
    if feasible:
        header, *rows = table([_header(report), *(_row(alternative, report) for alternative in feasible)], left={0}).splitlines()
        yield f"  {header}"
        for row, alternative in zip(rows, feasible, strict=True):
            yield f"  {row}"
            yield from (f"      {line}" for line in _module_changes(alternative))
    for alternative in explained.others:
        if alternative.refused:
            yield f"  {_named(alternative)}: cannot be: {alternative.refused}"
    if explained.untried:
        yield f"  {explained.untried} more not tried"
    yield ""


def _decided_names(decider: Decider, explained: Explained) -> str:
    """The arrays that a decider decided, if there are several deciders."""
    if len(explained.deciders) == 1:
        return ""
    name, *other_names = decider.names
    return f" ({name}{f' and {len(other_names)} more' if other_names else ''})"


def _header(report: Report) -> tuple[str, ...]:
    return ("instead", *(("step", "change") if report.step is not None else ()), "wire bytes", "change", "memory", "change")


def _row(alternative: Alternative, report: Report) -> tuple[str, ...]:
    assert alternative.difference is not None
    second = alternative.difference.second
    times: tuple[str, ...] = ()
    if report.step is not None:
        times = ("-" if second.seconds is None else time_text(second.seconds), share_text(second.seconds, report.seconds))
    sizes = [(second.wire_bytes, report.wire_bytes), (second.peak_bytes, report.peak_bytes)]
    return (_named(alternative), *times, *(text for now, before in sizes for text in (size_text(now), share_text(now, before))))


def _named(alternative: Alternative) -> str:
    if alternative.sharding is not None:
        return spec_of(alternative.sharding)
    return f"left open: {' and '.join(map(spec_of, alternative.chosen))}" if alternative.chosen else "left open"


def _module_changes(alternative: Alternative) -> Iterator[str]:
    """The modules whose traffic differs, the largest difference first, and the difference in compute time."""
    assert alternative.difference is not None
    alike: dict[str, list[Change]] = defaultdict(list)
    for change in alternative.difference.changes:
        alike[without_numbers("/".join(change.modules)) or "the program"].append(change)
    is_timed = has_times(alternative.difference)
    ordered = sorted(alike.items(), key=lambda item: -abs(_increase(item[1], is_timed=is_timed)))
    for name, changes in ordered[:MODULES]:
        kinds: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            kinds[change.kind].append(change)
        largest = sorted(kinds.items(), key=lambda item: -abs(_increase(item[1], is_timed=is_timed)))
        of_kinds = ", ".join(f"{kind} {_more_text(kind_changes, is_timed=is_timed)}" for kind, kind_changes in largest)
        yield f"{name}: {of_kinds}"
    if (unlisted := len(ordered) - MODULES) > 0:
        yield f"and {unlisted} more module{'' if unlisted == 1 else 's'}"
    if is_timed:
        yield from _computing(alternative.difference)


def _computing(difference: Difference) -> Iterator[str]:
    before, after = difference.first.compute_seconds, difference.second.compute_seconds
    if before is not None and after is not None and abs(after - before) >= _LEAST_SECONDS:
        yield f"computing {_more_time(after - before)}"


_LEAST_SECONDS = 0.5e-6
"""Shorter times would be shown as 0 us."""


def _increase(changes: Sequence[Change], *, is_timed: bool) -> float:
    if is_timed:
        return sum((change.second.seconds or 0.0) - (change.first.seconds or 0.0) for change in changes)
    return sum(change.wire_bytes for change in changes)


def _more_text(changes: Sequence[Change], *, is_timed: bool) -> str:
    increase = _increase(changes, is_timed=is_timed)
    return _more_time(increase) if is_timed else more_text(increase)


def _more_time(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{time_text(abs(seconds))}"
