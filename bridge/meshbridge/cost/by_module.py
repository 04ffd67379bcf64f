"""Communication by module of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshbridge.analysis.origins import Origin
from meshbridge.cost.communication import Collective


@dataclass(frozen=True)
class ModuleTraffic:
    """What a module of the model communicates, the modules within it included. A collective that stands for several counts for
    each of their modules, by its share. Figures are those of one device and one step."""

    path: tuple[str, ...]
    "As `Origin.modules`; empty for the whole program."
    wire_bytes: float
    own_bytes: float
    "Of them, those of no module within it."
    share: float
    "Of the program's wire bytes; 0 where there are none."
    by_phase: Mapping[str, float]
    "Wire bytes by phase, most first."
    executions: int
    "Of collectives that it has a share in."
    seconds: float | None
    "Of communication, one collective after the other; None without a machine of a topology."
    modules: tuple[ModuleTraffic, ...]
    "Those within it, most bytes first."

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1] if self.path else ""

    def walk(self) -> Iterator[ModuleTraffic]:
        """It, and all modules within it, each before those within."""
        yield self
        for module in self.modules:
            yield from module.walk()


Part = tuple[Collective, Origin]


def by_module(collectives: Iterable[Collective]) -> ModuleTraffic:
    """The tree of modules that collectives with `origins` come from."""
    parts = [(collective, origin) for collective in collectives for origin in collective.origins]
    return _traffic((), parts, sum((_bytes(part) for part in parts), 0.0))


def _traffic(path: tuple[str, ...], parts: Sequence[Part], whole: float) -> ModuleTraffic:
    within: dict[str, list[Part]] = {}
    phases: dict[str, float] = {}
    for part in parts:
        _, origin = part
        phases[origin.phase] = phases.get(origin.phase, 0.0) + _bytes(part)
        if len(origin.modules) > len(path):
            within.setdefault(origin.modules[len(path)], []).append(part)
    modules = [_traffic((*path, name), inner, whole) for name, inner in within.items()]
    total = sum(phases.values(), 0.0)
    known = [collective.total_seconds for collective, _ in parts]
    distinct = {id(collective): collective for collective, _ in parts}.values()
    return ModuleTraffic(
        path=path,
        wire_bytes=total,
        own_bytes=sum((_bytes(part) for part in parts if len(part[1].modules) == len(path)), 0.0),
        share=total / whole if whole else 0.0,
        by_phase=dict(sorted(phases.items(), key=lambda item: -item[1])),
        executions=sum(collective.executions for collective in distinct),
        seconds=None if None in known else sum((each or 0.0) * part[1].share for each, part in zip(known, parts, strict=True)),
        modules=tuple(sorted(modules, key=lambda module: (-module.wire_bytes, module.path))),
    )


def _bytes(part: Part) -> float:
    collective, origin = part
    return collective.total_bytes * origin.share
