"""Measures mutations: a program's metrics before and after them, as the RFC's search for shardings defines them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshbridge.decide.mutations import Mutation, mutate
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.pipeline import Options, build, run
from meshbridge.read.formats import copy_module
from meshbridge.reports.report import Report, partition_and_report
from meshbridge.text import Tabular, public, size_text, table, time_text


@dataclass(frozen=True)
class Metrics:
    """The metrics of a partitioned program."""

    wire_bytes: float
    "Of one device and one run."
    by_kind: dict[str, float]
    "Wire bytes by kind of collective."
    executions: int
    "How many collectives one run starts."
    redundant_flops: float | None
    "FLOPs of dot products and convolutions that all devices compute beyond the program's. None if it came partitioned."
    redundant_elements: float | None
    "Redundant elements of other arithmetic."
    peak_bytes: float
    "The most memory that one device needs at one time."
    seconds: float | None
    "Of the predicted step, on a machine with a topology."

    @staticmethod
    def of(report: Report) -> Metrics:
        """The metrics of a report. Work that simplification removes does not count as negative redundancy."""
        redundant_work = report.redundant_work
        redundant = (
            (None, None) if redundant_work is None else (max(redundant_work.contractions, 0.0), max(redundant_work.elements, 0.0))
        )
        flops, elements = (None if figure is None else figure * report.mesh.size for figure in redundant)
        kinds = report.bytes_by_kind()
        return Metrics(report.wire_bytes, kinds, report.executions, flops, elements, report.peak_bytes, report.seconds)

    def rows(self) -> Iterator[tuple[str, float, str]]:
        """Yields the name of each metric, its figure, and the figure as text."""
        yield "wire bytes per device", self.wire_bytes, size_text(self.wire_bytes)
        for kind, wire in self.by_kind.items():
            yield f"  {kind}", wire, size_text(wire)
        yield "collectives executed", self.executions, f"{self.executions:,}"
        for name, figure in (
            ("redundant FLOPs, all devices", self.redundant_flops),
            ("redundant elements, all devices", self.redundant_elements),
        ):
            if figure is not None:
                yield name, figure, f"{figure:,.0f}"
        yield "peak memory per device", self.peak_bytes, size_text(self.peak_bytes)
        if self.seconds is not None:
            yield "predicted step", self.seconds, time_text(self.seconds)


@public
@dataclass(frozen=True, repr=False)
class Measured(Tabular):
    """The metrics of a program before and after mutations."""

    before: Metrics
    after: Metrics

    @property
    def headline(self) -> str:
        """What a device sends before and after."""
        return f"a device sends {size_text(self.before.wire_bytes)} before, {size_text(self.after.wire_bytes)} after"

    def table(self) -> str:
        """Both side by side, as text."""
        sides = [{name: (figure, text) for name, figure, text in metrics.rows()} for metrics in (self.before, self.after)]
        names = _in_order(*sides)
        drawn = [(name, *(side[name][1] if name in side else "-" for side in sides), _change(name, *sides)) for name in names]
        return table([("metric", "before", "after", "change"), *drawn], left={0})

    def to_json(self) -> str:
        """Both as JSON, with exact figures."""
        return json.dumps({"before": vars(self.before), "after": vars(self.after)}, indent=2)


_Rows = dict[str, tuple[float, str]]


def _in_order(before: _Rows, after: _Rows) -> list[str]:
    """The names of the rows of both; new kinds of collectives come after the others."""
    names = list(before)
    at = names.index("collectives executed")
    return names[:at] + [name for name in after if name not in before] + names[at:]


def _change(name: str, before: _Rows, after: _Rows) -> str:
    earlier, later = (side.get(name, (0.0, ""))[0] for side in (before, after))
    if earlier == later:
        return "="
    return f"{later / earlier - 1:+.1%}" if earlier else "new"


def to_legal(module: ir.Module) -> None:
    """Takes a program to the stage `legal` in place; mutations name operations of that stage.

    Raises MeshError, also for a program that is partitioned already."""
    if is_partitioned(module):
        raise MeshError("error: the program is partitioned already, mutations have no effect on it")
    run(build(Options(emit="annotated")).until("legal").passes, module, verified="dialect")


def mutate_and_measure(module: ir.Module, mutations: Sequence[Mutation] | Iterable[Mutation], options: Options) -> Measured:
    """Legalizes and mutates `module` in place, and partitions copies from before and after with the same options.

    Raises MeshError as `partition_and_report` does, and as `mutate`.
    """
    to_legal(module)
    before = copy_module(module)
    mutate(module, mutations)
    return Measured(_metrics(before, options), _metrics(copy_module(module), options))


def _metrics(module: ir.Module, options: Options) -> Metrics:
    report, _ = partition_and_report(module, options)
    return Metrics.of(report)
