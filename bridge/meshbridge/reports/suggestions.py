"""Suggests changes of a program that save communication: other shardings of arguments and results, and constraints to remove.
Each suggestion is measured by partitioning the changed program.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.step import predict
from meshbridge.dialect import reannotate
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned, mesh_or_single
from meshbridge.dialect.names import names_in
from meshbridge.ir.locations import SourceLocation, user_line
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.ir.sharding import Mesh
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import OnStage, Options, Timing
from meshbridge.progress import OnProgress, each
from meshbridge.read.formats import copy_module
from meshbridge.reports.changes import (
    SIDES,
    TriedChange,
    changes_of,
    exposed_bytes,
    leaves_of,
    most_promising,
    partition_and_observe,
    spec_of,
    tensors,
)
from meshbridge.reports.exposure import Exposure
from meshbridge.reports.families import Split, families
from meshbridge.reports.report import Report, Suggestion, sharded_arrays

TRIES = 4
"""How many changes are tried for each requested suggestion and once more. Each try is one partitioning."""

LEAST = 0.01
"""The share of wire bytes, or of the predicted step, that a change has to save to be suggested."""


class _PlanFigures(NamedTuple):
    """The figures of a plan."""

    seconds: float | None
    wire_bytes: float
    peak_bytes: float
    chosen: tuple[Split, ...] = ()
    "The distinct shardings of the leaves of the change."

    def saves(self, before: _PlanFigures) -> float:
        """The saved share of the predicted step, or of the wire bytes without one."""
        if self.seconds is not None and before.seconds:
            return 1 - self.seconds / before.seconds
        return 1 - self.wire_bytes / before.wire_bytes if before.wire_bytes else 0.0


def partition_and_suggest(
    module: ir.Module,
    options: Options,
    count: int,
    *,
    tokens: float | None = None,
    on_stage: OnStage | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Report, list[Timing]]:
    """`partition_and_report`, with at most `count` suggestions out of at most `TRIES * (count + 1)` tried changes. Changes that
    cannot be partitioned, or whose plan exceeds the memory limit, are not suggested. Progress is that of the changes.

    Raises MeshError like `partition_and_report`, if `count` is not positive, and for a program that came partitioned.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise MeshError(f"error: suggest is {count!r}, expected how many suggestions to make, 1 or more")
    if is_partitioned(module):
        raise MeshError("error: suggest has no effect on a program that is partitioned already")
    report, timings, annotated, exposed = partition_and_observe(module, options, tokens=tokens, on_stage=on_stage)
    changes = _changes(annotated, report, exposed)[: TRIES * (count + 1)]
    before = _PlanFigures(report.seconds, report.wire_bytes, report.peak_bytes)
    tried = ((change, _try(change, annotated, options)) for change in each(changes, on_progress))
    feasible = [(change, figures) for change, figures in tried if figures is not None]
    saving = [plan for plan in feasible if plan[1].saves(before) >= LEAST]
    proposed = {(change.leaves, change.split) for change, _ in saving if change.split is not None}
    saving = [
        (change, figures) for change, figures in saving if not (change.is_open and (change.leaves, *figures.chosen) in proposed)
    ]
    saving = [plan for plan in saving if not _keeps_sharding(*plan)]
    chosen = sorted(saving, key=lambda plan: (-plan[1].saves(before), plan[1].peak_bytes))[:count]
    suggestions = tuple(_suggestion(*plan) for plan in chosen)
    return replace(report, suggestions=suggestions, tried=len(changes)), timings


def _keeps_sharding(change: TriedChange, figures: _PlanFigures) -> bool:
    """True if the plan chooses the present sharding for leaves that the change leaves open."""
    return change.is_open and set(figures.chosen) == {leaf.sharding for leaf in change.leaves}


def _try(change: TriedChange, annotated: ir.Module, options: Options) -> _PlanFigures | None:
    """The figures of the changed program; None if it cannot be partitioned."""
    copy, target = copy_module(annotated), options.target.devices
    with copy.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the changed program is not the user's
        try:
            change.apply(copy)
            partition_module(copy, replace(options, emit="mesh", stablehlo_version=None, ops=()))
            seconds = None if target is None else predict(copy, target).seconds
        except MeshError:
            return None
    main = main_function(copy)
    return _PlanFigures(seconds, communication(copy).wire_bytes, memory(main).peak, _chosen(change, main, mesh_or_single(copy)))


def _chosen(change: TriedChange, main: ir.Operation, mesh: Mesh) -> tuple[Split, ...]:
    """The distinct shardings of the leaves of a change in a partitioned program."""
    names = names_in(main)
    shardings = {
        (side, index): array.sharding
        for side in SIDES
        for index, array in zip(tensors(main, side), sharded_arrays(main, side, mesh, getattr(names, side)), strict=True)
    }
    return tuple(dict.fromkeys(shardings[leaf.side, leaf.index] for leaf in change.leaves))


def _suggestion(change: TriedChange, figures: _PlanFigures) -> Suggestion:
    sides = {side: tuple(leaf.name for leaf in change.leaves if leaf.side == side) for side in SIDES}
    return Suggestion(
        change=change.text + (f": meshbridge chooses {' and '.join(map(spec_of, figures.chosen))}" if change.is_open else ""),
        **sides,
        sharding=change.split,
        constraint=change.constraint,
        wire_bytes=figures.wire_bytes,
        seconds=figures.seconds,
        peak_bytes=figures.peak_bytes,
    )


def _changes(annotated: ir.Module, report: Report, exposed: Exposure) -> list[TriedChange]:
    """The changes to try, the most promising first."""
    mesh = find_mesh(annotated)
    if mesh is None or mesh.size == 1:
        return []
    main = main_function(annotated)
    tried_families = families([leaf for leaf in leaves_of(report, main) if leaf.shape and not leaf.unreduced])
    about: list[tuple[float, list[TriedChange]]] = [
        (exposed_bytes(family, exposed), changes_of(family, main, mesh)) for family in tried_families
    ]
    about += [
        (_constraint_bytes(line, report), [TriedChange(f"take out the constraint at {line}", constraint=line)])
        for line in _lines(annotated)
    ]
    return most_promising(about)


def _lines(annotated: ir.Module) -> list[SourceLocation]:
    return list(dict.fromkeys(line for op in reannotate.constraints(annotated) if (line := user_line(op.location)).file))


def _constraint_bytes(line: SourceLocation, report: Report) -> float:
    text = f"your constraint at {line.short}"
    return sum(collective.total_bytes for collective in report.collectives if collective.asked == text)
