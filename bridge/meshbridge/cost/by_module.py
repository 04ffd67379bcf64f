"""Communication by module of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshbridge.analysis.origins import Origin
from meshbridge.cost.communication import Collective


@dataclass(frozen=True)
class ModuleTraffic:
    """The communication of a module of the model, inner modules included. A combined collective counts for each of its modules by
    its share. Figures are for one device and one step."""

    path: tuple[str, ...]
    "As `Origin.modules`; empty for the whole program."
    wire_bytes: float
    own_bytes: float
    "The wire bytes of no inner module."
    share: float
    "The part of the program's wire bytes; 0 if it has none."
    by_phase: Mapping[str, float]
    "Wire bytes by phase, most first."
    executions: int
    "Executions of the collectives that it has a share in."
    seconds: float | None
    "Seconds of communication, one collective after the other; None without a machine with a topology."
    modules: tuple[ModuleTraffic, ...]
    "The inner modules, most bytes first."

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1] if self.path else ""

    def walk(self) -> Iterator[ModuleTraffic]:
        """The module and all inner modules, outer ones first."""
        yield self
        for module in self.modules:
            yield from module.walk()


Part = tuple[Collective, Origin]


def by_module(collectives: Iterable[Collective]) -> ModuleTraffic:
    """The tree of the modules that collectives with `origins` come from."""
    parts = [(collective, origin) for collective in collectives for origin in collective.origins]
    return _traffic((), parts, sum((_bytes(part) for part in parts), 0.0))


def _traffic(path: tuple[str, ...], parts: Sequence[Part], program_bytes: float) -> ModuleTraffic:
    within: dict[str, list[Part]] = {}
    phases: dict[str, float] = {}
    for part in parts:
        _, origin = part
        phases[origin.phase] = phases.get(origin.phase, 0.0) + _bytes(part)
        if len(origin.modules) > len(path):
            within.setdefault(origin.modules[len(path)], []).append(part)
    modules = [_traffic((*path, name), inner, program_bytes) for name, inner in within.items()]
    total = sum(phases.values(), 0.0)
    seconds = [collective.total_seconds for collective, _ in parts]
    distinct = {id(collective): collective for collective, _ in parts}.values()
    return ModuleTraffic(
        path=path,
        wire_bytes=total,
        own_bytes=sum((_bytes(part) for part in parts if len(part[1].modules) == len(path)), 0.0),
        share=total / program_bytes if program_bytes else 0.0,
        by_phase=dict(sorted(phases.items(), key=lambda item: -item[1])),
        executions=sum(collective.executions for collective in distinct),
        seconds=None
        if None in seconds
        else sum((share_seconds or 0.0) * part[1].share for share_seconds, part in zip(seconds, parts, strict=True)),
        modules=tuple(sorted(modules, key=lambda module: (-module.wire_bytes, module.path))),
    )


def _bytes(part: Part) -> float:
    collective, origin = part
    return collective.total_bytes * origin.share
