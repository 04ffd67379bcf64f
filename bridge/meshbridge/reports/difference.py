"""How two plans of one program differ: in the shardings of arguments and results, and in the collectives that came, went, grew or
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
from meshbridge.reports.report import Report, ShardedArray, partition_and_report
from meshbridge.text import Tabular, public, size_text

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""

EQUAL = 1e-9
"""Sums of bytes and of seconds are equal up to this relative difference, because the order of summation varies."""

ChangeKind = Literal["came", "went", "grew", "shrank"]


@dataclass(frozen=True)
class Amount:
    """The traffic of collectives, of one device and one step."""

    executions: int = 0
    wire_bytes: float = 0.0
    seconds: float | None = None
    "The sum over all collectives; None without a machine with a topology."


@dataclass(frozen=True)
class Resharded:
    """An argument or result that the two plans shard differently."""

    side: str
    "`arguments` or `results`."
    name: str
    "Its path, or `argument 3` if it has none."
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
    """The traffic, in each plan, of the collectives of one kind, along the same axes, of one module and phase. A combined
    collective counts for each of its modules, by its share."""

    modules: tuple[str, ...]
    "The path of the module, outermost first; empty outside of any."
    phase: Phase
    kind: str
    axes: tuple[str, ...]
    first: Amount
    second: Amount

    @property
    def what(self) -> ChangeKind:
        """What became of the collectives. Grown and shrunk ones are compared by bytes, then executions, then seconds."""
        if not self.first.executions:
            return "came"
        if not self.second.executions:
            return "went"
        before, after = _figures(self.first), _figures(self.second)
        differs = next(index for index in range(3) if not isclose(before[index], after[index], rel_tol=EQUAL))
        return "grew" if after[differs] > before[differs] else "shrank"

    @property
    def wire_bytes(self) -> float:
        """The bytes that the second plan sends more, or less if negative."""
        return self.second.wire_bytes - self.first.wire_bytes


@dataclass(frozen=True)
class ModuleChange:
    """The traffic of a module of the model in each plan, including the modules within it."""

    modules: tuple[str, ...]
    "Its path; empty for the whole program."
    first: Amount
    second: Amount


@dataclass(frozen=True)
class Total:
    """A figure of both programs, of one device and one step."""

    name: str
    "`wire_bytes`, `executions` (of collectives), `contractions` (FLOPs of products), `seconds` and its kin, `peak_bytes`."
    first: float | None
    "None if it is unknown, as seconds without a machine with a topology."
    second: float | None


@public
@dataclass(frozen=True, repr=False)
class Difference(Tabular):
    """How two plans of one program differ."""

    first: Report
    second: Report
    resharded: tuple[Resharded, ...]
    "Arguments, then results, in order."
    changes: tuple[Change, ...]
    "Collectives whose traffic differs, the largest difference of bytes first."
    modules: tuple[ModuleChange, ...]
    "Modules whose traffic differs, each before those within it; the whole program first."
    totals: tuple[Total, ...]

    @property
    def is_empty(self) -> bool:
        """True if the two plans shard and send the same."""
        return not (self.resharded or self.changes)

    @property
    def headline(self) -> str:
        """What both plans send."""
        if self.is_empty:
            return "the plans shard and send the same"
        first, second = (size_text(report.wire_bytes) for report in (self.first, self.second))
        return f"a device sends {first} by the first plan, {second} by the second"

    def remarks(self) -> tuple[str, ...]:
        """What to know before comparing the plans, one sentence each."""
        return tuple(_remarks(self.first, self.second))

    def table(self) -> str:
        """The difference as text: shardings, modules, collectives, totals. Repeated modules that differ alike share a line."""
        return difference_table(self)

    def to_json(self) -> str:
        """The difference as docs/report-json.md describes it."""
        whole = {
            "schema": SCHEMA,
            "resharded": [asdict(array) for array in self.resharded],
            "changes": [asdict(change) | {"what": change.what} for change in self.changes],
            "modules": [asdict(module) for module in self.modules],
            "totals": {total.name: {"first": total.first, "second": total.second} for total in self.totals},
            "remarks": self.remarks(),
        }
        return json.dumps(whole, indent=2)


@dataclass(frozen=True)
class PlannedProgram:
    """A program and the options to partition it with. A program that came partitioned continues from its stage."""

    module: ir.Module
    options: Options
    about: Callable[[], AbstractContextManager[None]] = nullcontext
    "Names the program in diagnostics."

    def report(self) -> Report:
        """The report of the program. Raises MeshError if it cannot be partitioned."""
        return self._report(copy_module(self.module), self.options)

    def report_as_partitioned(self) -> Report:
        """The report of the exported program, which does not say which operation made a partial value: its all-reduce counts for
        the module that reads it. Raises MeshError if the program cannot be partitioned."""
        copy = copy_module(self.module)
        with self.about():
            partition_module(copy, replace(self.options, emit="exported"))
        return self._report(copy, self.options.limited(None))

    def _report(self, module: ir.Module, options: Options) -> Report:
        with self.about():
            report, _ = partition_and_report(module, options)
        return report


def came_partitioned(report: Report) -> bool:
    """True if the program of a report came partitioned, so that the reasons of its collectives are unknown."""
    return report.needed_work is None or {collective.asked for collective in report.collectives} == {OWN}


def difference_of(
    first: Report | PlannedProgram, second: Report | PlannedProgram, on_report: Callable[[], object] = bool
) -> Difference:
    """`difference` of programs or reports. If one program came partitioned, the other is read from its partitioned form, too.
    Calls `on_report` after each report. Raises MeshError, also if a program cannot be partitioned."""
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
    """How the second plan differs from the first.

    Raises MeshError if their programs have different arguments or results.
    """
    for side in SIDES:
        _check_same_arrays(side, getattr(first, side), getattr(second, side))
    return Difference(
        first,
        second,
        resharded=tuple(array for side in SIDES for array in _resharded(side, getattr(first, side), getattr(second, side))),
        changes=tuple(sorted(_changes(first, second), key=lambda change: (-abs(change.wire_bytes), change.modules, change.kind))),
        modules=tuple(_modules(first.modules, second.modules, (_no_traffic(first), _no_traffic(second)))),
        totals=tuple(_totals(first, second)),
    )


def _check_same_arrays(side: str, first: Sequence[ShardedArray], second: Sequence[ShardedArray]) -> None:
    hint = "compare plans of one program, made with other shardings or options"
    for number, (before, after) in enumerate(zip_longest(first, second)):
        if before is None or after is None:
            mismatch = f"the first has {len(first)} {side}, the second {len(second)}"
        elif (before.shape, before.element_type) != (after.shape, after.element_type) or (
            before.name != after.name and before.name and after.name
        ):
            mismatch = f"{side[:-1]} {number} is {_title(before)} in the first, {_title(after)} in the second"
        else:
            continue
        raise MeshError(f"error: these are plans of different programs: {mismatch}\n  hint: {hint}")


def _title(array: ShardedArray) -> str:
    """`params['head'], f32[64, 256]`"""
    type_ = f"{array.element_type}[{', '.join(map(str, array.shape))}]"
    return f"{array.name}, {type_}" if array.name else type_


def _resharded(side: str, first: Sequence[ShardedArray], second: Sequence[ShardedArray]) -> Iterator[Resharded]:
    for number, (before, after) in enumerate(zip(first, second, strict=True)):
        if (before.sharding, before.unreduced) != (after.sharding, after.unreduced):
            name = before.name or after.name or f"{side[:-1]} {number}"
            shardings = (before.sharding, after.sharding, before.unreduced, after.unreduced)
            yield Resharded(side, name, before.shape, before.element_type, *shardings)


class _ComparisonKey(NamedTuple):
    """The attributes by which collectives of two plans are compared."""

    modules: tuple[str, ...]
    phase: Phase
    kind: str
    axes: tuple[str, ...]

    @property
    def any_phase(self) -> _ComparisonKey:
        return self._replace(phase="unknown")


def _changes(first: Report, second: Report) -> Iterator[Change]:
    shares = [list(_shares(report.collectives)) for report in (first, second)]
    # An artifact may have lost its phases: then phases of the other plan are ignored, too.
    unknown = {key.any_phase for key, *_ in (*shares[0], *shares[1]) if key.phase == "unknown"}
    before, after = (_amounts(parts, unknown) for parts in shares)
    for key in dict.fromkeys((*before, *after)):
        amount_before, amount_after = before.get(key, _no_traffic(first)), after.get(key, _no_traffic(second))
        if not _is_equal(amount_before, amount_after):
            yield Change(*key, amount_before, amount_after)


def _no_traffic(report: Report) -> Amount:
    """The amount of no collectives."""
    return Amount(seconds=None if report.step is None else 0.0)


_Share = tuple[_ComparisonKey, Collective, float]
"""A share of a collective, and its key."""


def _shares(collectives: Sequence[Collective]) -> Iterator[_Share]:
    for collective in collectives:
        for origin in collective.origins:
            yield _ComparisonKey(origin.modules, origin.phase, collective.kind, collective.axes), collective, origin.share


def _amounts(parts: Iterable[_Share], unknown: Container[_ComparisonKey]) -> dict[_ComparisonKey, Amount]:
    """The amounts by key; keys in `unknown` have no known phase."""
    parts_at: dict[_ComparisonKey, list[tuple[Collective, float]]] = defaultdict(list)
    for key, collective, share in parts:
        parts_at[key.any_phase if key.any_phase in unknown else key].append((collective, share))
    return {key: _amount(shares_of_key) for key, shares_of_key in parts_at.items()}


def _amount(parts: Sequence[tuple[Collective, float]]) -> Amount:
    """The amount of shares of collectives. A collective of several origins is executed once."""
    times = [collective.total_seconds for collective, _ in parts]
    return Amount(
        executions=sum({id(collective): collective.executions for collective, _ in parts}.values()),
        wire_bytes=sum(collective.total_bytes * share for collective, share in parts),
        seconds=None
        if None in times
        else sum((seconds or 0.0) * share for seconds, (_, share) in zip(times, parts, strict=True)),
    )


def _figures(amount: Amount) -> tuple[float, float, float]:
    return amount.wire_bytes, amount.executions, amount.seconds or 0.0


def _is_equal(before: Amount, after: Amount) -> bool:
    """True if the figures that both have are equal."""
    figures = list(zip(_figures(before), _figures(after), strict=True))[: 2 if None in (before.seconds, after.seconds) else 3]
    return all(isclose(*pair, rel_tol=EQUAL) for pair in figures)


def _modules(first: ModuleTraffic | None, second: ModuleTraffic | None, none: tuple[Amount, Amount]) -> Iterator[ModuleChange]:
    """The changes of a module and those within it. A module that one plan lacks sends nothing there."""
    module = first or second
    assert module is not None
    change = ModuleChange(module.path, *(_of_module(*traffic) for traffic in zip((first, second), none, strict=True)))
    if not _is_equal(change.first, change.second):
        yield change
    before, after = ({module.name: module for module in traffic.modules} if traffic else {} for traffic in (first, second))
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
        "they are for different meshes": [_mesh_text(report) for report in (first, second)],
        "they are made for different machines": [
            None if came_partitioned(report) else report.machine for report in (first, second)
        ],
        "their steps are predicted on different machines": [
            None if report.step is None else report.step.target.text for report in (first, second)
        ],
        "before they are partitioned, the programs compute different FLOPs of products": [
            _needed(report) for report in (first, second)
        ],
    }
    for text, (before, after) in pairs.items():
        if before is not None and after is not None and before != after:
            yield f"{text}: {before} and {after}"
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
