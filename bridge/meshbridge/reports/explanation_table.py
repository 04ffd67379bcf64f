"""An explanation of shardings as text for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meshbridge.reports.changes import spec_of
from meshbridge.reports.difference_table import more_text, share_text
from meshbridge.reports.families import without_numbers
from meshbridge.text import joined, size_text, table, time_text

if TYPE_CHECKING:
    from meshbridge.reports.difference import Change, Difference
    from meshbridge.reports.explanation import Decider, Explained, Explanation, Other
    from meshbridge.reports.report import Report

MODULES = 3
"""Of how many modules it is said what they send more or less."""


def explanation_table(explanation: Explanation) -> str:
    """See `Explanation.table`."""
    return joined([line for each in explanation.explained for line in _one(each, explanation.report)] + list(_plan(explanation)))


def _plan(explanation: Explanation) -> Iterator[str]:
    report = explanation.report
    step = "" if report.step is None else f", about {time_text(report.step.seconds)} per step on {report.step.target.text}"
    tried = explanation.tried
    count = f"{tried} other sharding{'' if tried == 1 else 's'} tried, each by partitioning the program again"
    yield f"the plan: {size_text(report.wire_bytes)} on the wire, {size_text(report.peak_bytes)} of memory{step}; {count}"
    yield from explanation.remarks()


def _one(each: Explained, report: Report) -> Iterator[str]:
    type_ = f"{each.element_type}[{', '.join(map(str, each.shape))}]"
    yield f"{each.name}, {type_}: {spec_of(each.sharding, each.unreduced)}"
    for decider in each.deciders:
        yield f"  {decider.by}{_of(decider, each)}"
    if report.wire_bytes:
        yield f"  {size_text(each.exposed_bytes)} of {size_text(report.wire_bytes)} on the wire are about it"
    possible = [other for other in each.others if other.difference is not None]
    if possible:
        first, *rows = table([_header(report), *(_row(other, report) for other in possible)], left={0}).splitlines()
        yield f"  {first}"
        for row, other in zip(rows, possible, strict=True):
            yield f"  {row}"
            yield from (f"      {line}" for line in _where(other))
    for other in each.others:
        if other.refused:
            yield f"  {_named(other)}: cannot be: {other.refused}"
    if each.untried:
        yield f"  {each.untried} more not tried"
    yield ""


def _of(decider: Decider, each: Explained) -> str:
    """Whose sharding it is, where not that of all."""
    if len(each.deciders) == 1:
        return ""
    first, *others = decider.names
    return f" ({first}{f' and {len(others)} more' if others else ''})"


def _header(report: Report) -> tuple[str, ...]:
    return ("instead", *(("step", "change") if report.step is not None else ()), "wire bytes", "change", "memory", "change")


def _row(other: Other, report: Report) -> tuple[str, ...]:
    assert other.difference is not None
    second = other.difference.second
    times: tuple[str, ...] = ()
    if report.step is not None:
        times = ("-" if second.seconds is None else time_text(second.seconds), share_text(second.seconds, report.seconds))
    sizes = [(second.wire_bytes, report.wire_bytes), (second.peak_bytes, report.peak_bytes)]
    return (_named(other), *times, *(text for now, before in sizes for text in (size_text(now), share_text(now, before))))


def _named(other: Other) -> str:
    if other.sharding is not None:
        return spec_of(other.sharding)
    return f"left open: {' and '.join(map(spec_of, other.chosen))}" if other.chosen else "left open"


def _where(other: Other) -> Iterator[str]:
    """The modules that send differently, the largest difference first; what takes longer beside."""
    assert other.difference is not None
    alike: dict[str, list[Change]] = defaultdict(list)
    for change in other.difference.changes:
        alike[without_numbers("/".join(change.modules)) or "the program"].append(change)
    is_timed = _is_timed(other.difference)
    ordered = sorted(alike.items(), key=lambda item: -abs(_more(item[1], is_timed=is_timed)))
    for name, changes in ordered[:MODULES]:
        kinds: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            kinds[change.kind].append(change)
        largest = sorted(kinds.items(), key=lambda item: -abs(_more(item[1], is_timed=is_timed)))
        of_kinds = ", ".join(f"{kind} {_more_text(found, is_timed=is_timed)}" for kind, found in largest)
        yield f"{name}: {of_kinds}"
    if (left := len(ordered) - MODULES) > 0:
        yield f"and {left} more module{'' if left == 1 else 's'}"
    if is_timed:
        yield from _computing(other.difference)


def _computing(difference: Difference) -> Iterator[str]:
    first, second = difference.first.compute_seconds, difference.second.compute_seconds
    if first is not None and second is not None and abs(second - first) >= _LEAST_SECONDS:
        yield f"computing {_more_time(second - first)}"


_LEAST_SECONDS = 0.5e-6
"""Below it a time is shown as 0 us."""


def _is_timed(difference: Difference) -> bool:
    return difference.first.step is not None and difference.second.step is not None


def _more(changes: Sequence[Change], *, is_timed: bool) -> float:
    if is_timed:
        return sum((each.second.seconds or 0.0) - (each.first.seconds or 0.0) for each in changes)
    return sum(each.wire_bytes for each in changes)


def _more_text(changes: Sequence[Change], *, is_timed: bool) -> str:
    more = _more(changes, is_timed=is_timed)
    return _more_time(more) if is_timed else more_text(more)


def _more_time(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{time_text(abs(seconds))}"
