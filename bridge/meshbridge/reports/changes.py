"""Changes of an annotated program that can be tried: its arguments and results sharded otherwise, constraints taken out of it.

What is tried first is what most communication is about (`exposure`); what shares a sharding is changed together (`families`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from meshbridge.dialect import reannotate
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.locations import SourceLocation, user_line
from meshbridge.ir.mlir import function_type, ir, main_function
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.pipeline import OnStage, Options, Timing
from meshbridge.read.formats import copy_module
from meshbridge.reports.exposure import Exposure, exposure
from meshbridge.reports.families import Family, FamilyMember, Split
from meshbridge.reports.report import Report, partition_and_report
from meshbridge.text import quoted, spec_text

SIDES = ("arguments", "results")

ANNOTATION_OF = {"arguments": reannotate.annotation_of_argument, "results": reannotate.annotation_of_result}
"""What says how the caller holds an argument, or gets a result."""

CONSTRAINT_OF = {"arguments": reannotate.constraint_of_argument, "results": reannotate.constraint_of_result}
"""The sharding constraint of the program that an argument goes into, or of which a result comes, without an op between."""


class Before(NamedTuple):
    """What is known of a program before anything is tried."""

    report: Report
    timings: list[Timing]
    annotated: ir.Module
    "What is changed."
    exposed: Exposure


def partition_and_observe(
    module: ir.Module, options: Options, *, tokens: float | None = None, on_stage: OnStage | None = None
) -> Before:
    """`partition_and_report` of a program whose changes are to be tried. Raises MeshError as that does."""
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
    return Before(report, timings, annotated[0], exposed[0])


class TriedChange(NamedTuple):
    """Something to try: leaves that are sharded otherwise, or lines whose constraints are taken out."""

    text: str
    leaves: tuple[FamilyMember, ...] = ()
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


def changes_of(family: Family, main: ir.Operation, mesh: Mesh) -> list[TriedChange]:
    """Other shardings for a family: meshbridge's choice, where somebody has chosen; an axis more, moved, or fewer. None of
    a scalar, or of what is unreduced."""
    if not family.shape or family.leaves[0].unreduced:
        return []
    now = spec_of(family.sharding)
    changes = [
        TriedChange(f"shard {family.name} as {spec_of(split)} instead of {now}", family.leaves, split)
        for split in _splits(family, mesh)
    ]
    if any(ANNOTATION_OF[leaf.side](main, leaf.index) is not None for leaf in family.leaves):
        changes.insert(0, TriedChange(f"leave the sharding of {family.name} open, now {now}", family.leaves))
    return changes


def most_promising(about: Iterable[tuple[float, Sequence[TriedChange]]]) -> list[TriedChange]:
    """All changes, of which each list is about so many bytes: of what twice as many bytes are about, twice as many come first."""
    ranked = [(wire / number, change) for wire, changes in about for number, change in enumerate(changes, 1)]
    return [change for _, change in sorted(ranked, key=lambda each: -each[0])]


def exposed_bytes(family: Family, exposed: Exposure) -> float:
    """Wire bytes that are about a family."""
    found = {op: wire for leaf in family.leaves for op, wire in getattr(exposed, leaf.side)[leaf.index].items()}
    return sum(found.values(), 0.0)


def leaves_of(report: Report, main: ir.Operation) -> list[FamilyMember]:
    """The arguments and results that are tensors."""
    return [
        FamilyMember(
            side, index, each.name or f"{side[:-1]} {index}", each.shape, each.element_type, each.sharding, each.unreduced
        )
        for side in SIDES
        for index, each in zip(tensors(main, side), getattr(report, side), strict=True)
    ]


def tensors(main: ir.Operation, side: str) -> list[int]:
    """The numbers of the arguments or results of which a report speaks."""
    kind = function_type(main)
    types = kind.inputs if side == "arguments" else kind.results
    return [index for index, type_ in enumerate(types) if isinstance(type_, ir.RankedTensorType)]


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


def spec_of(split: Split, unreduced: Sequence[str] = ()) -> str:
    """As JAX writes it: `P("data", None)`, `P(None, unreduced={"model"})`."""
    terms = [f"unreduced={{{', '.join(map(_quoted, unreduced))}}}"] if unreduced else []
    return spec_text(([_quoted(axis) for axis in axes] for axes in split), *terms)


def _quoted(label: str) -> str:
    """An axis as JAX writes it, a sub-axis as Shardy does: `"x":(1)2` of `x:(1)2`."""
    found = _SUB_AXIS.fullmatch(label)
    return f"{quoted(found[1])}{found[2]}" if found else quoted(label)


_SUB_AXIS = re.compile(r"(.*)(:\(\d+\)\d+)", re.S)
