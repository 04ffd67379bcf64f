"""A report's collectives as a page lists them: by line of the user's source, equal ones together, most bytes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbridge.pages.sources import SnippetLine, snippet

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Where:
    """A module and a phase that collectives are for, and what they send for it."""

    path: str
    phase: str
    total: float


@dataclass(frozen=True)
class CollectiveGroup:
    """Collectives that differ in nothing but where they stand in the model. Bytes are those of one device."""

    kind: str
    axes: str
    group_size: int
    each: float
    "Wire bytes of one execution."
    operations: int
    executions: int
    total: float
    seconds: float | None
    "Of all executions; None without a machine of a topology."
    why: str
    asked: str
    origins: tuple[Where, ...]
    "Most bytes first."
    others: tuple[str, ...]
    "Other lines that they are for, where several collectives travel as one."


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source, and what is sent for it."""

    where: str
    function: str
    snippet: tuple[SnippetLine, ...]
    collectives: tuple[CollectiveGroup, ...]
    total: float
    share: float
    "Of all that the program sends."

    @property
    def executions(self) -> int:
        return sum(each.executions for each in self.collectives)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.kind for each in self.collectives))


def by_line(collectives: Sequence[Json]) -> Iterator[SourceLine]:
    """The source lines that communicate, those that send most first. A collective that stands for several is listed at the line
    of most of its bytes."""
    lines = _grouped(collectives, lambda each: tuple(_line(each)[key] for key in ("file", "line", "function")))
    whole = _total(collectives)
    for found in sorted(lines, key=_total, reverse=True):
        yield _source_line(found, whole)


def _grouped(collectives: Iterable[Json], key: Any) -> list[list[Json]]:
    """Those of one key together, in the order of the first of each."""
    groups: dict[Hashable, list[Json]] = {}
    for each in collectives:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _total(collectives: Iterable[Json]) -> float:
    return float(sum(each["total_bytes"] for each in collectives))


def _line(collective: Json) -> Json:
    """The line of the user's source that sends most of a collective's bytes."""
    most = max(collective["origins"], key=lambda origin: origin["share"], default=collective)
    found: Json = most["location"]
    return found


def _source_line(found: Sequence[Json], whole: float) -> SourceLine:
    at, total = _line(found[0]), _total(found)
    groups = _grouped(found, lambda each: (*(each[key] for key in _EQUAL), tuple(each["axes"])))
    alike = tuple(sorted((_alike(group) for group in groups), key=lambda each: -each.total))
    return SourceLine(_where(at), at["function"], snippet(at["file"], at["line"]), alike, total, total / whole if whole else 0.0)


_EQUAL = ("kind", "group_size", "wire_bytes", "why", "asked", "seconds")
"""What equal collectives have in common, beside their axes."""


def _where(at: Json) -> str:
    return f"{at['file']}:{at['line']}" if at["file"] else "no source line"


def _alike(group: Sequence[Json]) -> CollectiveGroup:
    first = group[0]
    executions = sum(each["executions"] for each in group)
    sent: Counter[tuple[str, str]] = Counter()
    lines = {_where(origin["location"]): None for each in group for origin in each["origins"]}
    lines.pop(_where(_line(first)), None)
    for each in group:
        for origin in each["origins"]:
            sent["/".join(origin["modules"]), origin["phase"]] += origin["share"] * each["total_bytes"]
    return CollectiveGroup(
        kind=first["kind"],
        axes=", ".join(first["axes"]) or "-",
        group_size=first["group_size"],
        each=first["wire_bytes"],
        operations=len(group),
        executions=executions,
        total=_total(group),
        seconds=None if first["seconds"] is None else first["seconds"] * executions,
        why=first["why"],
        asked=first["asked"],
        origins=tuple(Where(*key, total) for key, total in sent.most_common()),
        others=tuple(lines),
    )
