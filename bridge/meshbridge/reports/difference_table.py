"""Prints the difference of two plans as text. Modules and arrays that differ alike share a line if their names only differ in
numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meshbridge.reports.families import common_name, without_numbers
from meshbridge.text import joined, size_text, table, time_text, visible

if TYPE_CHECKING:
    from meshbridge.reports.difference import Amount, Change, Difference, ModuleChange, Total

LEAST = 0.01
"""Differences below this share of the wire bytes, or of the seconds of communication, are only counted."""


def difference_table(difference: Difference) -> str:
    """See `Difference.table`."""
    parts = [list(part) for part in (_shardings(difference), _modules(difference), _collectives(difference), _totals(difference))]
    if difference.is_empty:
        parts[:3] = [["the plans shard alike and send the same"]]
    return "\n".join(["\n\n".join(joined(part) for part in parts if part), *map(visible, difference.remarks())])


def _shardings(difference: Difference) -> Iterator[str]:
    names: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for array in difference.resharded:
        names[array.side, without_numbers(array.name), array.text].append(array.name)
    if names:
        yield f"{len(difference.resharded)} sharded otherwise in the second plan:"
    for (*_, text), paths in names.items():
        yield f"  {_several(paths, 'arrays')}: {text}"


def _several(names: Sequence[str], of_what: str) -> str:
    """`layers[*] (2 arrays)`"""
    return common_name(names) + (f" ({len(names)} {of_what})" if len(names) > 1 else "")


def _modules(difference: Difference) -> Iterator[str]:
    alike: dict[tuple[str, Amount, Amount], list[ModuleChange]] = defaultdict(list)
    for module in difference.modules:
        alike[without_numbers(_path(module.modules)), module.first, module.second].append(module)
    groups = [group for group in alike.values() if _is_large(group, difference)]
    if not any(group[0].modules for group in groups):
        return
    is_timed = has_times(difference)
    rows = [(_named(group), *_amounts(group, is_timed=is_timed)) for group in groups]
    yield from table([("module", *_header(is_timed=is_timed)), *rows], left={0}).splitlines()
    yield from _left_out(len(alike) - len(groups), "module")


def _collectives(difference: Difference) -> Iterator[str]:
    alike: dict[object, list[Change]] = defaultdict(list)
    for change in difference.changes:
        key = (without_numbers(_path(change.modules)), change.phase, change.kind, change.axes, change.first, change.second)
        alike[key].append(change)
    groups = [group for group in alike.values() if _is_large(group, difference)]
    is_timed = has_times(difference)
    rows = [
        (
            group[0].what,
            group[0].kind,
            ",".join(group[0].axes) or "-",
            *_amounts(group, is_timed=is_timed),
            group[0].phase,
            _named(group),
        )
        for group in sorted(groups, key=lambda group: -abs(sum(change.wire_bytes for change in group)))
    ]
    if rows:
        header = ("", "collective", "axes", *_header(is_timed=is_timed), "phase", "module")
        yield from table([header, *rows], left={0, 1, 2, len(header) - 2, len(header) - 1}).splitlines()
    yield from _left_out(len(alike) - len(groups), "difference")


def _is_large(group: Sequence[Change | ModuleChange], difference: Difference) -> bool:
    reports = (difference.first, difference.second)
    wire = abs(sum(change.second.wire_bytes - change.first.wire_bytes for change in group))
    seconds = (
        abs(sum((change.second.seconds or 0.0) - (change.first.seconds or 0.0) for change in group))
        if has_times(difference)
        else 0.0
    )
    most = max(report.communication_seconds or 0.0 for report in reports)
    return wire > LEAST * max(report.wire_bytes for report in reports) or seconds > LEAST * most


def has_times(difference: Difference) -> bool:
    """True if a step is predicted for both plans."""
    return difference.first.step is not None and difference.second.step is not None


def _header(*, is_timed: bool) -> tuple[str, ...]:
    return ("wire bytes", "instead of", "more", "executed", "instead of", *(("time", "instead of") if is_timed else ()))


def _amounts(group: Sequence[Change | ModuleChange], *, is_timed: bool) -> tuple[str, ...]:
    """The cells of a group, whose members have equal amounts."""
    before, after, count = group[0].first, group[0].second, len(group)
    sizes = [count * amount.wire_bytes for amount in (after, before)]
    executed = [f"{count * amount.executions:,}" for amount in (after, before)]
    times = [time_text(count * (amount.seconds or 0.0)) for amount in (after, before)] if is_timed else []
    return (*map(size_text, sizes), more_text(sizes[0] - sizes[1]), *executed, *times)


def more_text(size: float) -> str:
    """`+1.2 MB`, `-260 B`"""
    return f"{'-' if size < 0 else '+'}{size_text(abs(size))}"


def _named(group: Sequence[Change | ModuleChange]) -> str:
    return _several([_path(change.modules) for change in group], "modules")


def _path(modules: Sequence[str]) -> str:
    return "/".join(modules) or "the program"


def _left_out(count: int, noun: str) -> Iterator[str]:
    if count:
        yield f"{count} more {noun}{'' if count == 1 else 's'} of at most {LEAST:.0%} each"


_TITLES = {
    "wire_bytes": ("wire bytes per device and step", size_text),
    "executions": ("collectives", "{:,}".format),
    "peak_bytes": ("memory per device", size_text),
    "seconds": ("predicted step", time_text),
    "exposed_seconds": ("of it exposed", time_text),
    "communication_seconds": ("communication", time_text),
    "compute_seconds": ("computing", time_text),
    "contractions": ("FLOPs of products per device", "{:,.0f}".format),
}


def _totals(difference: Difference) -> Iterator[str]:
    rows = [_total(total) for total in difference.totals if total.first is not None or total.second is not None]
    yield from table([("", "second", "first", "change"), *rows], left={0}).splitlines()


def _total(total: Total) -> tuple[str, str, str, str]:
    title, text = _TITLES[total.name]
    before, after = ("-" if figure is None else text(figure) for figure in (total.first, total.second))
    return title, after, before, share_text(total.second, total.first)


def share_text(now: float | None, before: float | None) -> str:
    """The relative change of a figure: `+64%`, `-3.1%`; `-` if it is equal or unknown."""
    if now is None or not before or now == before:
        return "-"
    share = now / before - 1
    if abs(share) < 0.0005:
        return "0.0%"
    return f"{share:+.0%}" if abs(share) >= 0.0995 else f"{share:+.1%}"
