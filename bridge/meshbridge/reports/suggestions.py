"""What to change in a program so that it communicates less: other shardings of its arguments and results, and constraints to take
out. Each is tried by partitioning the changed program, and what is said of it is what that gave.

What is tried first is what most communication is about (`exposure`); what shares a sharding is changed together (`families`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import prod
from typing import NamedTuple

from meshbridge.cost.communication import communication
from meshbridge.cost.memory import memory
from meshbridge.cost.step import predict
from meshbridge.dialect import reannotate
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned, mesh_or_single
from meshbridge.dialect.names import names_in
from meshbridge.ir.locations import SourceLocation, user_line
from meshbridge.ir.mlir import MeshError, function_type, ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.pipeline import OnStage, Options, Timing, partition_module
from meshbridge.read.formats import copy_module
from meshbridge.reports.exposure import Exposure, exposure
from meshbridge.reports.families import Family, Leaf, Split, families
from meshbridge.reports.report import Report, Suggestion, held, partition_and_report
from meshbridge.text import spec_text

TRIES = 4
"""How many changes are tried for each suggestion that is asked for, and beside these. Each is one partitioning."""

LEAST = 0.01
"""The share of wire bytes, or of the predicted step, that a change has to save to be suggested."""


_SIDES = ("arguments", "results")


class _Change(NamedTuple):
    """Something to try: leaves that are sharded otherwise, or lines whose constraints are taken out."""

    text: str
    leaves: tuple[Leaf, ...] = ()
    split: Split | None = None
    constraint: SourceLocation | None = None

    @property
    def is_open(self) -> bool:
        """Whether it leaves a sharding to meshbridge."""
        return bool(self.leaves) and self.split is None

    def apply(self, module: ir.Module) -> None:
        """Makes the change in an annotated module."""
        main, mesh = main_function(module), find_mesh(module)
        if self.constraint is not None:
            reannotate.drop(op for op in reannotate.constraints(module) if user_line(op.location) == self.constraint)
            return
        assert mesh is not None
        sharding = None if self.split is None else _sharding(mesh, self.split)
        for leaf in self.leaves:
            change = reannotate.annotate_argument if leaf.side == "arguments" else reannotate.annotate_result
            change(main, leaf.index, sharding)


class _Figures(NamedTuple):
    """Of a plan."""

    seconds: float | None
    wire_bytes: float
    peak_bytes: float
    chosen: tuple[Split, ...] = ()
    "How the leaves of the change are sharded in it, each way once."

    def saves(self, before: _Figures) -> float:
        """The share of the step that is saved, or of the wire bytes where no step is predicted."""
        if self.seconds is not None and before.seconds:
            return 1 - self.seconds / before.seconds
        return 1 - self.wire_bytes / before.wire_bytes if before.wire_bytes else 0.0


def partition_and_suggest(
    module: ir.Module, options: Options, count: int, *, tokens: float | None = None, on_stage: OnStage | None = None
) -> tuple[Report, list[Timing]]:
    """`partition_and_report`, with at most `count` suggestions, for which `TRIES * (count + 1)` changes are tried at most. A
    change that cannot be partitioned, or whose plan exceeds the limit of memory, is not suggested.

    Raises MeshError as that does, for a count that is not positive, and for a program that came partitioned.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise MeshError(f"error: suggest is {count!r}, expected how many suggestions to make, 1 or more")
    if is_partitioned(module):
        raise MeshError("error: suggest has no effect on a program that is partitioned already")
    annotated: list[ir.Module] = []
    exposed: list[Exposure] = []

    def observe(stage: str, module: ir.Module) -> None:
        if stage == "annotated":
            annotated.append(copy_module(module))
        if stage == "optimised":
            exposed.append(exposure(module))
        if on_stage is not None:
            on_stage(stage, module)

    report, timings = partition_and_report(module, options, tokens=tokens, on_stage=observe)
    changes = _changes(annotated[0], report, exposed[0])[: TRIES * (count + 1)]
    before = _Figures(report.seconds, report.wire_bytes, report.peak_bytes)
    found = [(change, figures) for change in changes if (figures := _try(change, annotated[0], options)) is not None]
    better = [each for each in found if each[1].saves(before) >= LEAST]
    said = {(change.leaves, change.split) for change, _ in better if change.split is not None}
    better = [
        (change, figures) for change, figures in better if not (change.is_open and (change.leaves, *figures.chosen) in said)
    ]
    best = sorted(better, key=lambda each: (-each[1].saves(before), each[1].peak_bytes))[:count]
    suggestions = tuple(_suggestion(*each) for each in best)
    return replace(report, suggestions=suggestions, tried=len(changes)), timings


def _try(change: _Change, annotated: ir.Module, options: Options) -> _Figures | None:
    """The figures of the program with that change; None where it cannot be partitioned so."""
    copy, target = copy_module(annotated), options.target
    with copy.context, ir.Location.unknown(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a program that nobody has written
        try:
            change.apply(copy)
            partition_module(copy, replace(options, emit="mesh", stablehlo_version=None, ops=()))
            seconds = None if target is None else predict(copy, target).seconds
        except MeshError:
            return None
    main = main_function(copy)
    return _Figures(seconds, communication(copy).wire_bytes, memory(main).peak, _chosen(change, main, mesh_or_single(copy)))


def _chosen(change: _Change, main: ir.Operation, mesh: Mesh) -> tuple[Split, ...]:
    """How the leaves of a change are sharded in a partitioned program, each way once."""
    names = names_in(main)
    found = {
        (side, index): each.sharding
        for side in _SIDES
        for index, each in zip(_tensors(main, side), held(main, side, mesh, getattr(names, side)), strict=True)
    }
    return tuple(dict.fromkeys(found[leaf.side, leaf.index] for leaf in change.leaves))


def _suggestion(change: _Change, figures: _Figures) -> Suggestion:
    sides = {side: tuple(leaf.name for leaf in change.leaves if leaf.side == side) for side in _SIDES}
    return Suggestion(
        change=change.text + (f": meshbridge chooses {' and '.join(map(_spec, figures.chosen))}" if change.is_open else ""),
        **sides,
        sharding=change.split,
        constraint=change.constraint,
        wire_bytes=figures.wire_bytes,
        seconds=figures.seconds,
        peak_bytes=figures.peak_bytes,
    )


def _changes(annotated: ir.Module, report: Report, exposed: Exposure) -> list[_Change]:
    """What could be tried, the most promising first: of what twice as many bytes are about, twice as many come."""
    mesh = find_mesh(annotated)
    if mesh is None or mesh.size == 1:
        return []
    main = main_function(annotated)
    about = [(_exposed(family, exposed), _of_family(family, main, mesh)) for family in families(_leaves(report, main))]
    about += [
        (_asked(line, report), [_Change(f"take out the constraint at {line}", constraint=line)]) for line in _lines(annotated)
    ]
    ranked = [(wire / number, change) for wire, changes in about for number, change in enumerate(changes, 1)]
    return [change for _, change in sorted(ranked, key=lambda each: -each[0])]


def _lines(annotated: ir.Module) -> list[SourceLocation]:
    return list(dict.fromkeys(line for op in reannotate.constraints(annotated) if (line := user_line(op.location)).file))


def _asked(line: SourceLocation, report: Report) -> float:
    text = f"your constraint at {line.short}"
    return sum(collective.total_bytes for collective in report.collectives if collective.asked == text)


def _exposed(family: Family, exposed: Exposure) -> float:
    """Wire bytes that are about a family."""
    found = {op: wire for leaf in family.leaves for op, wire in getattr(exposed, leaf.side)[leaf.index].items()}
    return sum(found.values(), 0.0)


def _leaves(report: Report, main: ir.Operation) -> list[Leaf]:
    """The arguments and results that are tensors, with dimensions to shard."""
    found = []
    for side in _SIDES:
        for index, each in zip(_tensors(main, side), getattr(report, side), strict=True):
            name = each.name or f"{side[:-1]} {index}"
            if each.shape and not each.unreduced:
                found.append(Leaf(side, index, name, each.shape, each.element_type, each.sharding))
    return found


def _tensors(main: ir.Operation, side: str) -> list[int]:
    """The numbers of the arguments or results of which a report speaks."""
    kind = function_type(main)
    types = kind.inputs if side == "arguments" else kind.results
    return [index for index, type_ in enumerate(types) if isinstance(type_, ir.RankedTensorType)]


def _of_family(family: Family, main: ir.Operation, mesh: Mesh) -> list[_Change]:
    """Other shardings for a family: meshbridge's choice, where somebody has chosen; an axis more, moved, or fewer."""
    said = {"arguments": reannotate.annotation_of_argument, "results": reannotate.annotation_of_result}
    now = _spec(family.sharding)
    changes = [
        _Change(f"shard {family.name} as {_spec(split)} instead of {now}", family.leaves, split)
        for split in _splits(family, mesh)
    ]
    if any(said[leaf.side](main, leaf.index) is not None for leaf in family.leaves):
        changes.insert(0, _Change(f"leave the sharding of {family.name} open, now {now}", family.leaves))
    return changes


def _splits(family: Family, mesh: Mesh) -> Iterator[Split]:
    """Shardings that differ from that of a family by one axis. None where it has sub-axes, or uneven shards would follow."""
    sizes, shape, now = dict(mesh.named_axes), family.shape, family.sharding
    used = {axis for axes in now for axis in axes}
    if not used <= set(sizes):
        return
    free = sorted((axis for axis in sizes if axis not in used), key=lambda axis: -sizes[axis])
    added = [_with(now, dim, axis) for axis in free for dim in range(len(shape))]
    removed = [(axis, _without(now, axis)) for axis in sizes if axis in used]
    moved = [_with(split, dim, axis) for axis, split in removed for dim in range(len(shape)) if axis not in now[dim]]
    for split in (*added, *moved, *(split for _, split in removed)):
        if all(size % prod(sizes[axis] for axis in axes) == 0 for size, axes in zip(shape, split, strict=True)):
            yield split


def _with(split: Split, dim: int, axis: str) -> Split:
    return (*split[:dim], (*split[dim], axis), *split[dim + 1 :])


def _without(split: Split, axis: str) -> Split:
    return tuple(tuple(each for each in axes if each != axis) for axes in split)


def _sharding(mesh: Mesh, split: Split) -> Sharding:
    return Sharding(mesh.name, tuple(tuple(chain.from_iterable(mesh.runs[axis] for axis in axes)) for axes in split))


def _spec(split: Split) -> str:
    return spec_text([f'"{axis}"' for axis in axes] for axes in split)
