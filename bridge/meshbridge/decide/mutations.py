"""Mutations: new sharding options for named operations, the RFC's `transform.mesh.mutate`.

    Mutation([["data"], [], []], op="stablehlo.dot_general", index=1)      the second product: its rows along "data"
    Mutation([["data"], []], op="stablehlo.dot_general", result=0)         the result of every product: its rows along "data"

A mutation is written like the user's own annotations: as the attribute with an op's option, or the `mesh.shard` that annotates a
tensor. Deciding follows it, and decides the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import TypeAlias

from meshbridge.decide.option_attribute import option_attribute
from meshbridge.decide.tensor_annotations import annotate_operand, annotate_result
from meshbridge.dialect.attributes import axis_array, axis_array_attr, integers
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import MANUAL_AXES, OPTION
from meshbridge.ir.locations import SourceLocation, trail_at
from meshbridge.ir.mlir import BARRIER, MANUAL, REGION_OPS, MeshError, OpError, display_name, functions_to_partition, ir
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.ops.option import Option, is_legal
from meshbridge.ops.rule import Interface, Loop, ShardingRule, may_have_loops
from meshbridge.text import did_you_mean, public

AxisList: TypeAlias = Sequence[int | str]
"""Mesh axes from outer to inner, each by its number or its name."""


@public
@dataclass(frozen=True)
class Mutation:
    """A new sharding option for the operations of a legal program that have this name and location; with an `index`, for one of
    them. Fields that are not given select nothing; at least one of the three is required."""

    option: Sequence[AxisList]
    """Per loop, the mesh axes that split it; for a result or operand, per dimension, followed by the axes along which it is a
    partial sum. Empty lists at the end may be left out, as in the RFC."""
    op: str = ""
    "The name of the op, or of a custom call with its target: `stablehlo.dot_general`, `stablehlo.custom_call @Qr`."
    location: str = ""
    """A line of the source, `model.py:42` or `model.py:42:8`, with any number of folders; or a name: of the op itself, or steps
    of its name stack, `Dense_1` or `LM/Dense_1/dot_general`."""
    index: int | None = None
    "Which of the operations that `op` and `location` select, in program order, from 0."
    result: int | None = None
    "The result of these operations to shard: the annotation of its definition."
    operand: int | None = None
    "The operand of these operations to shard: the annotation of one use of a tensor."
    written: str = ""
    "The location of the mutation for diagnostics: `script.mlir:3:1`."

    def __str__(self) -> str:
        parts = (
            f"{name} {value}"
            for name in ("op", "location", "index", "result", "operand")
            if (value := getattr(self, name)) not in ("", None)
        )
        return f"the mutation of {', '.join(parts) or 'nothing'}"


@public
@dataclass(frozen=True)
class Operation:
    """An operation that a mutation can name."""

    index: int
    "Among all operations of the program that have loops."
    name: str
    location: SourceLocation
    scope: str
    "The name stack of the op, `jit(step)/LM/Dense_1/dot_general`, or its name; empty if it has none."
    loops: tuple[Loop, ...]
    option: Option | None
    "The option that the program gives it."
    rule: ShardingRule = field(repr=False)
    mesh: Mesh = field(repr=False)
    manual: frozenset[int] = field(repr=False)
    "Axes of manual computations around it, along which it cannot be sharded."

    def options(self) -> Iterator[Option]:
        """The options in which each mesh axis splits at most one loop, the lower axis outside; the option without splits first. A
        loop is split into at most as many parts as it has iterations."""
        free = [axis for axis in range(self.mesh.rank) if axis not in self.manual and self.mesh.shape[axis] > 1]
        for places in product(range(-1, len(self.loops)), repeat=len(free)):
            loops = tuple(
                tuple(axis for axis, place in zip(free, places, strict=True) if place == loop) for loop in range(len(self.loops))
            )
            fits = all(self.mesh.group_size(axes) <= loop.size for axes, loop in zip(loops, self.loops, strict=True) if axes)
            if fits and is_legal(self.rule, loops, self.mesh):
                yield loops


def operations(module: ir.Module) -> tuple[Operation, ...]:
    """The operations of a legal program that a mutation can name, in program order. Raises MeshError for one without a mesh."""
    return tuple(_MutableProgram(module).described())


def mutate(module: ir.Module, mutations: Iterable[Mutation]) -> None:
    """Gives operations of a legal program new options, one mutation after the other, in place.

    Raises MeshError for a mutation that selects no operation, for an axis that the mesh does not have, and for an option that is
    illegal for one of the selected operations; the module may then be partly changed.
    """
    program = _MutableProgram(module)
    for mutation in mutations:
        try:
            program.apply(mutation)
        except MeshError as error:
            if not mutation.written:
                raise
            raise MeshError(f"{mutation.written}: error: {mutation} cannot be made\n{error}") from None


class _MutableProgram:
    """A legal program, and its operations that have loops."""

    def __init__(self, module: ir.Module) -> None:
        mesh = find_mesh(module)
        if mesh is None:
            raise MeshError("error: the program has no mesh, expected one along whose axes its operations can be split")
        self.module, self.mesh, self.interface = module, mesh, Interface()
        with module.context:
            functions = functions_to_partition(module)
            self.ops = [pair for function in functions for pair in self._within(function, frozenset())]

    def _within(self, op: ir.Operation, manual: frozenset[int]) -> Iterator[tuple[ir.Operation, frozenset[int]]]:
        for view in chain.from_iterable(region.blocks[0].operations for region in op.regions if len(region.blocks)):
            inner = view.operation
            if inner.name == MANUAL:
                axes = integers(inner.attributes[MANUAL_AXES]) if MANUAL_AXES in inner.attributes else range(self.mesh.rank)
                yield from self._within(inner, manual | frozenset(axes))
            elif inner.name in REGION_OPS:
                yield from self._within(inner, manual)
            elif may_have_loops(inner.name) and inner.name not in _HANDED_ON and self.interface.rule(inner).loops:
                yield inner, manual

    def described(self) -> Iterator[Operation]:
        with self.module.context:
            for index, (op, manual) in enumerate(self.ops):
                rule, trail = self.interface.rule(op), trail_at(op.location)
                option = axis_array(op.attributes[OPTION]) if OPTION in op.attributes else None
                scope = "/".join(trail.stacks) or next(iter(_names(op)), "")
                yield Operation(index, display_name(op), trail.user_line, scope, rule.loops, option, rule, self.mesh, manual)

    def apply(self, mutation: Mutation) -> None:
        option = tuple(self._axes(axes) for axes in mutation.option)
        if mutation.result is not None and mutation.operand is not None:
            raise MeshError("error: a mutation names a result and an operand, expected one of them")
        with self.module.context:
            for op, manual in self._selected(mutation):
                if manual_axes := sorted(manual.intersection(chain.from_iterable(option))):
                    name = self.mesh.axis_name(manual_axes[0])
                    raise OpError(op, f'is in a manual computation along "{name}", expected an option along other axes')
                if mutation.result is not None:
                    annotate_result(op, mutation.result, option, self.mesh)
                elif mutation.operand is not None:
                    annotate_operand(op, mutation.operand, option, self.mesh)
                else:
                    op.attributes[OPTION] = axis_array_attr(option)
                    option_attribute(op, self.interface.rule(op), self.mesh)

    def _axes(self, axes: AxisList) -> Axes:
        return tuple(chain.from_iterable(self._axis(axis) for axis in axes))

    def _axis(self, axis: int | str) -> Axes:
        if isinstance(axis, str) and axis in self.mesh.runs:
            return self.mesh.runs[axis]
        if isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis < self.mesh.rank:
            return (axis,)
        names = ", ".join(f'"{name}"' for name in self.mesh.runs)
        near = did_you_mean(str(axis), self.mesh.runs)
        raise MeshError(f"error: found the axis {axis!r}, expected {names}, or a number from 0 to {self.mesh.rank - 1}{near}")

    def _selected(self, mutation: Mutation) -> list[tuple[ir.Operation, frozenset[int]]]:
        if not mutation.op and not mutation.location and mutation.index is None:
            raise MeshError("error: a mutation names no operation, expected op, location or index")
        selected = [(op, manual) for op, manual in self.ops if _is_selected(op, mutation)]
        if not selected:
            raise MeshError(f"error: {mutation} selects no operation{self._hint(mutation)}")
        if mutation.index is None:
            return selected
        if not 0 <= mutation.index < len(selected):
            raise MeshError(f"error: {mutation} is beyond the {len(selected)} operations of that name and location, from 0")
        return [selected[mutation.index]]

    def _hint(self, mutation: Mutation) -> str:
        names = sorted({display_name(op) for op, _ in self.ops})
        if mutation.op and mutation.op not in names:
            return f": the program has {', '.join(names)}"
        return "\n  hint: mesh-opt --print-operations lists them"


_HANDED_ON = frozenset({"stablehlo.return", BARRIER})
"""Ops without loops of their own: other ops decide the shardings of their values."""

_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+):(\d+))?')


def _names(op: ir.Operation) -> list[str]:
    """The names in the location of an op, without file names."""
    return [text for text, line, _ in _STEP.findall(str(op.location)) if text and not line]


def _is_selected(op: ir.Operation, mutation: Mutation) -> bool:
    return (not mutation.op or mutation.op in (op.name, display_name(op))) and (
        not mutation.location or _is_at(str(op.location), mutation.location)
    )


def _is_at(location: str, wanted: str) -> bool:
    for text, line, column in _STEP.findall(location):
        positions = (f"{text}:{line}", f"{text}:{line}:{column}") if line else ()
        if any(position == wanted or position.endswith(f"/{wanted}") for position in positions):
            return True
        if not line and f"/{wanted}/" in f"/{text}/":
            return True
    return False
