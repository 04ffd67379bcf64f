"""Ops that are written many times in one program: derived once, then written again from what was noted of them.

A recipe is a list of ops by name, result types and attributes, whose operands are the inputs or results of ops before:

    input 0, then  mesh.all_gather(0) : tensor<8x16xf32> {gather_axis = 1, …},  stablehlo.reshape(1) : tensor<128xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir


@dataclass(frozen=True)
class _Note:
    """One op of a recipe. Values go by number: the inputs first, then the results in order."""

    name: str
    types: list[ir.Type]
    attributes: dict[str, ir.Attribute]
    operands: list[int]


@dataclass(frozen=True)
class _Recipe:
    notes: list[_Note]
    result: int

    def write(self, inputs: Sequence[ir.Value], emit: Builder) -> ir.Value:
        values = list(inputs)
        for note in self.notes:
            op = emit.op(note.name, note.types, [values[operand] for operand in note.operands], note.attributes)
            values.extend(op.results)
        return values[self.result]


@dataclass(frozen=True)
class _NotingBuilder(Builder):
    """Writes, and takes note of it."""

    numbers: dict[ir.Value, int]
    notes: list[_Note | None]
    "None for an op that cannot be written from a note: it has regions, or takes a value that no note tells of."

    def op(
        self,
        name: str,
        results: ir.Type | Sequence[ir.Type],
        operands: Sequence[ir.Value],
        attrs: dict[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        made = super().op(name, results, operands, attrs, regions)
        numbers = [self.numbers.get(operand, -1) for operand in operands]
        can_be_noted = not regions and -1 not in numbers
        self.notes.append(_Note(name, [value.type for value in made.results], attrs or {}, numbers) if can_be_noted else None)
        for value in made.results:
            self.numbers[value] = len(self.numbers)
        return made


class Recipes:
    """The recipes of one program, by what the ops follow from."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Recipe | None] = {}

    def value(self, key: Hashable, inputs: Sequence[ir.Value], emit: Builder, make: Callable[[Builder], ir.Value]) -> ir.Value:
        """What `make` writes of `inputs`, which is to depend on nothing but the `key`, and is to write with its builder alone."""
        if key in self._known:
            recipe = self._known[key]
            return make(emit) if recipe is None else recipe.write(inputs, emit)
        noting = _NotingBuilder(emit.loc, emit.ip, {value: number for number, value in enumerate(inputs)}, [])
        made = make(noting)
        notes = [note for note in noting.notes if note is not None]
        can_be_written = made in noting.numbers and len(notes) == len(noting.notes)
        self._known[key] = _Recipe(notes, noting.numbers[made]) if can_be_written else None
        return made
