"""What differs between two plans of one program: how arguments and results are sharded, and which collectives came, went, grew or
shrank, by module of the model and phase of the step."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from math import isclose
from typing import Literal, NamedTuple

from meshbridge.analysis.origins import Phase
from meshbridge.cost.by_module import ModuleTraffic
from meshbridge.cost.communication import Collective
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ops.reasons import OWN
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options
from meshbridge.read.formats import copy_module
from meshbridge.reports.changes import SIDES, spec_of
from meshbridge.reports.difference_table import difference_table
from meshbridge.reports.report import Held, Report, partition_and_report

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""

EQUAL = 1e-9
"""The relative difference below which sums of shares of bytes and of seconds are the same: they are added up in another order."""

What = Literal["came", "went", "grew", "shrank"]


@dataclass(frozen=True)
class Amount:
    """What collectives send, of one device and one step."""

    executions: int = 0
    wire_bytes: float = 0.0
    seconds: float | None = None
    "One collective after the other; None without a machine of a topology."


@dataclass(frozen=True)
class Resharded:
    """An argument or result that the two plans shard differently."""

    side: str
    "`arguments` or `results`."
    name: str
    "Its path, or `argument 3` where it has none."
    shape: tuple[int, ...]
    element_type: str
    first: tuple[tuple[str, ...], ...]
    "By dimension, the mesh axes along which it is split, outer first."
    second: tuple[tuple[str, ...], ...]
    first_unreduced: tuple[str, ...] = ()
    "The axes along which devices hold terms of a sum."
    second_unreduced: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`P(None, "model") instead of P(None, None)`"""
        return f"{spec_of(self.second, self.second_unreduced)} instead of {spec_of(self.first, self.first_unreduced)}"


@dataclass(frozen=True)
class Change:
    """Collectives of one kind, along the same axes, of one module and phase: what they send in each plan. A collective that
    stands for several counts for each of their modules, by its share."""

    modules: tuple[str, ...]
    "The path of the module, outermost first; empty outside of any."
    phase: Phase
    kind: str
    axes: tuple[str, ...]
    first: Amount
    second: Amount

    @property
    def what(self) -> What:
        """What became of them: whether there are any, by executions; whether there are more, by bytes, executions, seconds."""
        if not self.first.executions:
            return "came"
        if not self.second.executions:
            return "went"
        first, second = _ordered(self.first), _ordered(self.second)
        differs = next(index for index in range(3) if not isclose(first[index], second[index], rel_tol=EQUAL))
        return "grew" if second[differs] > first[differs] else "shrank"

    @property
    def wire_bytes(self) -> float:
        """By how much the second plan sends more; negative where it sends less."""
        return self.second.wire_bytes - self.first.wire_bytes


@dataclass(frozen=True)
class ModuleChange:
    """What a module of the model sends in each plan, the modules within it included."""

    modules: tuple[str, ...]
    "Its path; empty for the whole program."
    first: Amount
    second: Amount


@dataclass(frozen=True)
class Total:
    """A figure of both programs as wholes, of one device and one step."""

    name: str
    "`wire_bytes`, `executions` (of collectives), `contractions` (FLOPs of products), `seconds` and its kin, `peak_bytes`."
    first: float | None
    "None where it is not known: seconds without a machine of a topology."
    second: float | None


@dataclass(frozen=True)
class Difference:
    """What differs between two plans of one program."""

    first: Report
    second: Report
    resharded: tuple[Resharded, ...]
    "Arguments, then results, in order."
    changes: tuple[Change, ...]
    "What sends differently, the largest difference of bytes first."
    modules: tuple[ModuleChange, ...]
    "Those that send differently, each before those within it; the whole program first."
    totals: tuple[Total, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two plans shard and send the same."""
        return not (self.resharded or self.changes)

    def remarks(self) -> tuple[str, ...]:
        """What to know before the plans are compared, a sentence each."""
        return tuple(_remarks(self.first, self.second))

    def table(self) -> str:
        """The difference for people: shardings, modules, collectives, totals. Repeated modules that differ alike share a line."""
        return difference_table(self)

    def to_json(self) -> str:
        """The difference as docs/explain.md describes it."""
        whole = {
            "schema": SCHEMA,
            "resharded": [asdict(each) for each in self.resharded],
            "changes": [asdict(each) | {"what": each.what} for each in self.changes],
            "modules": [asdict(each) for each in self.modules],
            "totals": {each.name: {"first": each.first, "second": each.second} for each in self.totals},
            "remarks": self.remarks(),
        }
        return json.dumps(whole, indent=2)


@dataclass(frozen=True)
class Planned:
    """A program, and how it is partitioned; one that came partitioned goes on from where it is."""

    module: ir.Module
    options: Options
    about: Callable[[], AbstractContextManager[None]] = nullcontext
    "Names the program in diagnostics."

    def report(self) -> Report:
        """Raises MeshError, as the other does."""
        return self._report(copy_module(self.module), self.options)

    def report_as_partitioned(self) -> Report:
        """The same, read from the partitioned program. That does not say which operation made a partial value: its sum counts
        for the module that reads it."""
        copy = copy_module(self.module)
        with self.about():
            partition_module(copy, replace(self.options, emit="exported"))
        return self._report(copy, replace(self.options, memory_limit=None))

    def _report(self, module: ir.Module, options: Options) -> Report:
        with self.about():
            found, _ = partition_and_report(module, options)
        return found


def came_partitioned(report: Report) -> bool:
    """Whether its program did: then it does not say why its collectives are there."""
    return report.needed_work is None or (bool(report.collectives) and all(each.asked == OWN for each in report.collectives))


def difference_of(first: Report | Planned, second: Report | Planned, on_report: Callable[[], object] = bool) -> Difference:
    """`difference`, of programs as of reports. Where one program came partitioned, the other is read from the partitioned
    program, too. Says so whenever a report is made. Raises MeshError, also where a program cannot be partitioned."""
    plans, reports = (first, second), list[Report]()
    for plan in plans:
        reports.append(plan if isinstance(plan, Report) else plan.report())
        on_report()
    are_done = [came_partitioned(report) for report in reports]
    if any(are_done):
        reports = [
            report if is_done or isinstance(plan, Report) else plan.report_as_partitioned()
            for plan, report, is_done in zip(plans, reports, are_done, strict=True)
        ]
    return difference(*reports)


def difference(first: Report, second: Report) -> Difference:
    """What the second plan does otherwise than the first.

    Raises MeshError where they are of different programs: of other arguments or results.
    """
    for side in SIDES:
        _check(side, getattr(first, side), getattr(second, side))
    return Difference(
        first,
        second,
        resharded=tuple(each for side in SIDES for each in _resharded(side, getattr(first, side), getattr(second, side))),
        changes=tuple(sorted(_changes(first, second), key=lambda each: (-abs(each.wire_bytes), each.modules, each.kind))),
        modules=tuple(_modules(first.modules, second.modules, (_none(first), _none(second)))),
        totals=tuple(_totals(first, second)),
    )


def _check(side: str, first: Sequence[Held], second: Sequence[Held]) -> None:
    hint = "compare plans of one program, made with other shardings or options"
    for number, (one, other) in enumerate(zip_longest(first, second)):
        if one is None or other is None:
            found = f"the first has {len(first)} {side}, the second {len(second)}"
        elif (one.shape, one.element_type) != (other.shape, other.element_type) or (
            one.name != other.name and one.name and other.name
        ):
            found = f"{side[:-1]} {number} is {_title(one)} in the first, {_title(other)} in the second"
        else:
            continue
        raise MeshError(f"error: these are plans of different programs: {found}\n  hint: {hint}")


def _title(held: Held) -> str:
    """`params['head'], f32[64, 256]`"""
    type_ = f"{held.element_type}[{', '.join(map(str, held.shape))}]"
    return f"{held.name}, {type_}" if held.name else type_


def _resharded(side: str, first: Sequence[Held], second: Sequence[Held]) -> Iterator[Resharded]:
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if (one.sharding, one.unreduced) != (other.sharding, other.unreduced):
            name = one.name or other.name or f"{side[:-1]} {number}"
            shardings = (one.sharding, other.sharding, one.unreduced, other.unreduced)
            yield Resharded(side, name, one.shape, one.element_type, *shardings)


class _ComparisonKey(NamedTuple):
    """What collectives share that are compared with each other."""

    modules: tuple[str, ...]
    phase: Phase
    kind: str
    axes: tuple[str, ...]

    @property
    def any_phase(self) -> _ComparisonKey:
        return self._replace(phase="unknown")


def _changes(first: Report, second: Report) -> Iterator[Change]:
    placed = [list(_placed(report.collectives)) for report in (first, second)]
    # An artifact may have lost what tells phases apart: then those of the other plan are not told apart either.
    unknown = {place.any_phase for place, *_ in (*placed[0], *placed[1]) if place.phase == "unknown"}
    before, after = (_amounts(parts, unknown) for parts in placed)
    for place in dict.fromkeys((*before, *after)):
        one, other = before.get(place, _none(first)), after.get(place, _none(second))
        if not _is_same(one, other):
            yield Change(*place, one, other)


def _none(report: Report) -> Amount:
    """What nothing sends."""
    return Amount(seconds=None if report.step is None else 0.0)


_Part = tuple[_ComparisonKey, Collective, float]
"""A share in a collective, and where it belongs."""


def _placed(collectives: Sequence[Collective]) -> Iterator[_Part]:
    for each in collectives:
        for origin in each.origins:
            yield _ComparisonKey(origin.modules, origin.phase, each.kind, each.axes), each, origin.share


def _amounts(parts: Iterable[_Part], unknown: Container[_ComparisonKey]) -> dict[_ComparisonKey, Amount]:
    """By place; those are `unknown` of which the phase is not known."""
    found: dict[_ComparisonKey, list[tuple[Collective, float]]] = defaultdict(list)
    for place, collective, share in parts:
        found[place.any_phase if place.any_phase in unknown else place].append((collective, share))
    return {place: _amount(of_place) for place, of_place in found.items()}


def _amount(parts: Sequence[tuple[Collective, float]]) -> Amount:
    """Of collectives, each with the share in it that counts. One that has several origins is executed once."""
    known = [collective.total_seconds for collective, _ in parts]
    return Amount(
        executions=sum({id(collective): collective.executions for collective, _ in parts}.values()),
        wire_bytes=sum(collective.total_bytes * share for collective, share in parts),
        seconds=None if None in known else sum((each or 0.0) * share for each, (_, share) in zip(known, parts, strict=True)),
    )


def _ordered(amount: Amount) -> tuple[float, float, float]:
    return amount.wire_bytes, amount.executions, amount.seconds or 0.0


def _is_same(one: Amount, other: Amount) -> bool:
    """Whether they are equal in all that is known of both."""
    figures = list(zip(_ordered(one), _ordered(other), strict=True))[: 2 if None in (one.seconds, other.seconds) else 3]
    return all(isclose(*pair, rel_tol=EQUAL) for pair in figures)


def _modules(first: ModuleTraffic | None, second: ModuleTraffic | None, none: tuple[Amount, Amount]) -> Iterator[ModuleChange]:
    """A module and those within it, of one plan or both; what a plan does not have sends nothing."""
    here = first or second
    assert here is not None
    change = ModuleChange(here.path, *(_of_module(*each) for each in zip((first, second), none, strict=True)))
    if not _is_same(change.first, change.second):
        yield change
    before, after = ({module.name: module for module in each.modules} if each else {} for each in (first, second))
    for name in dict.fromkeys((*before, *after)):
        yield from _modules(before.get(name), after.get(name), none)


def _of_module(module: ModuleTraffic | None, none: Amount) -> Amount:
    return none if module is None else Amount(module.executions, module.wire_bytes, module.seconds)


_FIGURES = ("wire_bytes", "executions", "peak_bytes", "seconds", "exposed_seconds", "communication_seconds", "compute_seconds")


def _totals(first: Report, second: Report) -> Iterator[Total]:
    for name in _FIGURES:
        yield Total(name, getattr(first, name), getattr(second, name))
    yield Total("contractions", first.work.contractions, second.work.contractions)


def _remarks(first: Report, second: Report) -> Iterator[str]:
    pairs: dict[str, list[str | None]] = {
        "they are for different meshes": [_mesh_text(each) for each in (first, second)],
        "they are made for different machines": [None if came_partitioned(each) else each.machine for each in (first, second)],
        "their steps are predicted on different machines": [
            None if each.step is None else each.step.target.text for each in (first, second)
        ],
        "before they are partitioned, the programs compute different FLOPs of products": [
            _needed(each) for each in (first, second)
        ],
    }
    for text, (one, other) in pairs.items():
        if one is not None and other is not None and one != other:
            yield f"{text}: {one} and {other}"
    if came_partitioned(first) is not came_partitioned(second):
        which = "first" if came_partitioned(first) else "second"
        yield f"the {which} came partitioned: there sums of partial values count for the module that reads them"
    if (first.step is None) is not (second.step is None):
        which, why = ("second", second.unpredicted) if second.step is None else ("first", first.unpredicted)
        yield f"no step is predicted of the {which}{f': {why}' if why else ''}"


def _mesh_text(report: Report) -> str:
    return ", ".join(f"{name}={size}" for name, size in report.mesh.named_axes) or "one device"


def _needed(report: Report) -> str | None:
    return (
        None
        if report.needed_work is None or came_partitioned(report)
        else f"{report.needed_work.contractions * report.mesh.size:,.0f}"
    )
