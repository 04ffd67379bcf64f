"""The difference of two plans as text for people. Repeated modules and arrays that differ alike, numbers in their names aside,
share a line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from meshbridge.reports.families import common_name, without_numbers
from meshbridge.text import joined, size_text, table, time_text, visible

if TYPE_CHECKING:
    from meshbridge.reports.difference import Amount, Change, Difference, ModuleChange, Total

LEAST = 0.01
"""The share in the wire bytes, or in the seconds of communication, below which a difference is counted and not shown."""


def difference_table(difference: Difference) -> str:
    """See `Difference.table`."""
    parts = [list(part) for part in (_shardings(difference), _modules(difference), _collectives(difference), _totals(difference))]
    if difference.is_empty:
        parts[:3] = [["the plans shard alike and send the same"]]
    return "\n".join(["\n\n".join(joined(part) for part in parts if part), *map(visible, difference.remarks())])


def _shardings(difference: Difference) -> Iterator[str]:
    names: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in difference.resharded:
        names[each.side, without_numbers(each.name), each.text].append(each.name)
    if names:
        yield f"{len(difference.resharded)} sharded otherwise in the second plan:"
    for (*_, text), found in names.items():
        yield f"  {_several(found, 'arrays')}: {text}"


def _several(names: Sequence[str], of_what: str) -> str:
    """`layers[*] (2 arrays)`"""
    return common_name(names) + (f" ({len(names)} {of_what})" if len(names) > 1 else "")


def _modules(difference: Difference) -> Iterator[str]:
    alike: dict[tuple[str, Amount, Amount], list[ModuleChange]] = defaultdict(list)
    for each in difference.modules:
        alike[without_numbers(_path(each.modules)), each.first, each.second].append(each)
    groups = [group for group in alike.values() if _is_large(group, difference)]
    if not any(group[0].modules for group in groups):
        return
    is_timed = _is_timed(difference)
    rows = [(_named(group), *_amounts(group, is_timed=is_timed)) for group in groups]
    yield from table([("module", *_header(is_timed=is_timed)), *rows], left={0}).splitlines()
    yield from _left_out(len(alike) - len(groups), "module")


def _collectives(difference: Difference) -> Iterator[str]:
    alike: dict[object, list[Change]] = defaultdict(list)
    for each in difference.changes:
        key = (without_numbers(_path(each.modules)), each.phase, each.kind, each.axes, each.first, each.second)
        alike[key].append(each)
    groups = [group for group in alike.values() if _is_large(group, difference)]
    is_timed = _is_timed(difference)
    rows = [
        (
            group[0].what,
            group[0].kind,
            ",".join(group[0].axes) or "-",
            *_amounts(group, is_timed=is_timed),
            group[0].phase,
            _named(group),
        )
        for group in sorted(groups, key=lambda group: -abs(sum(each.wire_bytes for each in group)))
    ]
    if rows:
        header = ("", "collective", "axes", *_header(is_timed=is_timed), "phase", "module")
        yield from table([header, *rows], left={0, 1, 2, len(header) - 2, len(header) - 1}).splitlines()
    yield from _left_out(len(alike) - len(groups), "difference")


def _is_large(group: Sequence[Change | ModuleChange], difference: Difference) -> bool:
    reports = (difference.first, difference.second)
    wire = abs(sum(each.second.wire_bytes - each.first.wire_bytes for each in group))
    seconds = (
        abs(sum((each.second.seconds or 0.0) - (each.first.seconds or 0.0) for each in group)) if _is_timed(difference) else 0.0
    )
    most = max(report.communication_seconds or 0.0 for report in reports)
    return wire > LEAST * max(report.wire_bytes for report in reports) or seconds > LEAST * most


def _is_timed(difference: Difference) -> bool:
    return difference.first.step is not None and difference.second.step is not None


def _header(*, is_timed: bool) -> tuple[str, ...]:
    return ("wire bytes", "instead of", "more", "executed", "instead of", *(("time", "instead of") if is_timed else ()))


def _amounts(group: Sequence[Change | ModuleChange], *, is_timed: bool) -> tuple[str, ...]:
    """Of all in a group, which are equal."""
    first, second, count = group[0].first, group[0].second, len(group)
    sizes = [count * each.wire_bytes for each in (second, first)]
    executed = [f"{count * each.executions:,}" for each in (second, first)]
    times = [time_text(count * (each.seconds or 0.0)) for each in (second, first)] if is_timed else []
    return (*map(size_text, sizes), more_text(sizes[0] - sizes[1]), *executed, *times)


def more_text(size: float) -> str:
    """`+1.2 MB`, `-260 B`"""
    return f"{'-' if size < 0 else '+'}{size_text(abs(size))}"


def _named(group: Sequence[Change | ModuleChange]) -> str:
    return _several([_path(each.modules) for each in group], "modules")


def _path(modules: Sequence[str]) -> str:
    return "/".join(modules) or "the program"


def _left_out(count: int, what: str) -> Iterator[str]:
    if count:
        yield f"{count} more {what}{'' if count == 1 else 's'} of at most {LEAST:.0%} each"


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
    rows = [_total(each) for each in difference.totals if each.first is not None or each.second is not None]
    yield from table([("", "second", "first", "change"), *rows], left={0}).splitlines()


def _total(total: Total) -> tuple[str, str, str, str]:
    title, text = _TITLES[total.name]
    first, second = ("-" if each is None else text(each) for each in (total.first, total.second))
    return title, second, first, share_text(total.second, total.first)


def share_text(now: float | None, before: float | None) -> str:
    """By what share a figure is larger: `+64%`, `-3.1%`, `-` where it is the same or nothing can be said."""
    if now is None or not before or now == before:
        return "-"
    share = now / before - 1
    if abs(share) < 0.0005:
        return "0.0%"
    return f"{share:+.0%}" if abs(share) >= 0.0995 else f"{share:+.1%}"
