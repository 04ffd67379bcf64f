"""Groups a report's collectives for a page: by line of the user's source, equal ones together, most bytes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbridge.pages.sources import SnippetLine, snippet

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TrafficOrigin:
    """A module and a phase, and the bytes that collectives send for them."""

    path: str
    phase: str
    total: float


@dataclass(frozen=True)
class CollectiveGroup:
    """Collectives that only differ in their place in the model. Bytes are those of one device."""

    kind: str
    axes: str
    group_size: int
    each: float
    "Wire bytes of one execution."
    operations: int
    executions: int
    total: float
    seconds: float | None
    "The seconds of all executions; None without a machine with a topology."
    why: str
    asked: str
    origins: tuple[TrafficOrigin, ...]
    "Most bytes first."
    others: tuple[str, ...]
    "Other source lines of combined collectives."


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source, and its collectives."""

    where: str
    function: str
    snippet: tuple[SnippetLine, ...]
    collectives: tuple[CollectiveGroup, ...]
    total: float
    share: float
    "The share of all bytes of the program."

    @property
    def executions(self) -> int:
        return sum(group.executions for group in self.collectives)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.kind for group in self.collectives))


def by_line(collectives: Sequence[Json]) -> Iterator[SourceLine]:
    """The source lines that communicate, most bytes first. A combined collective is listed at the line of most of its bytes."""
    lines = _grouped(collectives, lambda collective: tuple(_line(collective)[key] for key in ("file", "line", "function")))
    whole = _total(collectives)
    for line_collectives in sorted(lines, key=_total, reverse=True):
        yield _source_line(line_collectives, whole)


def _grouped(collectives: Iterable[Json], key: Any) -> list[list[Json]]:
    """Groups collectives by key, in the order of the first of each group."""
    groups: dict[Hashable, list[Json]] = {}
    for collective in collectives:
        groups.setdefault(key(collective), []).append(collective)
    return list(groups.values())


def _total(collectives: Iterable[Json]) -> float:
    return float(sum(collective["total_bytes"] for collective in collectives))


def _line(collective: Json) -> Json:
    """The line of the user's source that sends most of a collective's bytes."""
    most = max(collective["origins"], key=lambda origin: origin["share"], default=collective)
    location: Json = most["location"]
    return location


def _source_line(line_collectives: Sequence[Json], whole: float) -> SourceLine:
    at, total = _line(line_collectives[0]), _total(line_collectives)
    groups = _grouped(line_collectives, lambda collective: (*(collective[key] for key in _EQUAL), tuple(collective["axes"])))
    alike = tuple(sorted((_collective_group(group) for group in groups), key=lambda group: -group.total))
    return SourceLine(_where(at), at["function"], snippet(at["file"], at["line"]), alike, total, total / whole if whole else 0.0)


_EQUAL = ("kind", "group_size", "wire_bytes", "why", "asked", "seconds")
"""The keys that equal collectives share, beside their axes."""


def _where(at: Json) -> str:
    return f"{at['file']}:{at['line']}" if at["file"] else "no source line"


def _collective_group(group: Sequence[Json]) -> CollectiveGroup:
    representative = group[0]
    executions = sum(collective["executions"] for collective in group)
    traffic: Counter[tuple[str, str]] = Counter()
    lines = {_where(origin["location"]): None for collective in group for origin in collective["origins"]}
    lines.pop(_where(_line(representative)), None)
    for collective in group:
        for origin in collective["origins"]:
            traffic["/".join(origin["modules"]), origin["phase"]] += origin["share"] * collective["total_bytes"]
    return CollectiveGroup(
        kind=representative["kind"],
        axes=", ".join(representative["axes"]) or "-",
        group_size=representative["group_size"],
        each=representative["wire_bytes"],
        operations=len(group),
        executions=executions,
        total=_total(group),
        seconds=None if representative["seconds"] is None else representative["seconds"] * executions,
        why=representative["why"],
        asked=representative["asked"],
        origins=tuple(TrafficOrigin(*key, total) for key, total in traffic.most_common()),
        others=tuple(lines),
    )
