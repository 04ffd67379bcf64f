"""Changes of an annotated program to try: other shardings of its arguments and results, and removed constraints.

Arrays with most communication are changed first (`exposure`); arrays of one family are changed together (`families`).
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
"""By side: reads the caller's sharding of an argument or result."""

CONSTRAINT_OF = {"arguments": reannotate.constraint_of_argument, "results": reannotate.constraint_of_result}
"""By side: reads the sharding constraint that directly uses an argument, or directly gives a result."""


class ObservedPlan(NamedTuple):
    """The plan of a program before any change."""

    report: Report
    timings: list[Timing]
    annotated: ir.Module
    "The program to change."
    exposed: Exposure


def partition_and_observe(
    module: ir.Module, options: Options, *, tokens: float | None = None, on_stage: OnStage | None = None
) -> ObservedPlan:
    """`partition_and_report`, which also keeps what is needed to try changes. Raises MeshError like it."""
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
    return ObservedPlan(report, timings, annotated[0], exposed[0])


class TriedChange(NamedTuple):
    """A change to try: another sharding of some leaves, or the removal of a line's constraints."""

    text: str
    leaves: tuple[FamilyMember, ...] = ()
    split: Split | None = None
    constraint: SourceLocation | None = None

    @property
    def is_open(self) -> bool:
        """True if it leaves the sharding to meshbridge."""
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
    """Other shardings for a family: meshbridge's choice if the user has chosen, and one axis added, moved or removed. Scalars and
    unreduced arrays have none."""
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
    """All changes in the order of their promise: a list's bytes, divided by the number of the change in the list."""
    ranked = [(wire / number, change) for wire, changes in about for number, change in enumerate(changes, 1)]
    return [change for _, change in sorted(ranked, key=lambda entry: -entry[0])]


def exposed_bytes(family: Family, exposed: Exposure) -> float:
    """The wire bytes of the collectives of a family."""
    wire_bytes = {op: wire for leaf in family.leaves for op, wire in getattr(exposed, leaf.side)[leaf.index].items()}
    return sum(wire_bytes.values(), 0.0)


def leaves_of(report: Report, main: ir.Operation) -> list[FamilyMember]:
    """The arguments and results that are tensors."""
    return [
        FamilyMember(
            side, index, array.name or f"{side[:-1]} {index}", array.shape, array.element_type, array.sharding, array.unreduced
        )
        for side in SIDES
        for index, array in zip(tensors(main, side), getattr(report, side), strict=True)
    ]


def tensors(main: ir.Operation, side: str) -> list[int]:
    """The numbers of the arguments or results that are tensors, as in a report."""
    kind = function_type(main)
    types = kind.inputs if side == "arguments" else kind.results
    return [index for index, type_ in enumerate(types) if isinstance(type_, ir.RankedTensorType)]


def _splits(family: Family, mesh: Mesh) -> Iterator[Split]:
    """Shardings that differ from a family's by one axis and give even shards; none if the family has sub-axes."""
    sizes, shape, now = dict(mesh.named_axes), family.shape, family.sharding
    used = {axis for axes in now for axis in axes}
    if not used <= set(sizes):
        return
    free = sorted((axis for axis in sizes if axis not in used), key=lambda axis: -sizes[axis])
    added = [_with(now, dim, axis) for axis in free for dim in range(len(shape))]
    removed = [(axis, _without(now, axis)) for axis in sizes if axis in used]
    relocated = [_with(split, dim, axis) for axis, split in removed for dim in range(len(shape)) if axis not in now[dim]]
    for split in (*added, *relocated, *(split for _, split in removed)):
        if all(size % prod(sizes[axis] for axis in axes) == 0 for size, axes in zip(shape, split, strict=True)):
            yield split


def _with(split: Split, dim: int, axis: str) -> Split:
    return (*split[:dim], (*split[dim], axis), *split[dim + 1 :])


def _without(split: Split, axis: str) -> Split:
    return tuple(tuple(name for name in axes if name != axis) for axes in split)


def _sharding(mesh: Mesh, split: Split) -> Sharding:
    return Sharding(mesh.name, tuple(tuple(chain.from_iterable(mesh.runs[axis] for axis in axes)) for axes in split))


def spec_of(split: Split, unreduced: Sequence[str] = ()) -> str:
    """A sharding in JAX's spelling: `P("data", None)`, `P(None, unreduced={"model"})`."""
    terms = [f"unreduced={{{', '.join(map(_quoted, unreduced))}}}"] if unreduced else []
    return spec_text(([_quoted(axis) for axis in axes] for axes in split), *terms)


def _quoted(label: str) -> str:
    """An axis in JAX's spelling, a sub-axis in Shardy's: `"x":(1)2` of `x:(1)2`."""
    sub_axis = _SUB_AXIS.fullmatch(label)
    return f"{quoted(sub_axis[1])}{sub_axis[2]}" if sub_axis else quoted(label)


_SUB_AXIS = re.compile(r"(.*)(:\(\d+\)\d+)", re.S)
