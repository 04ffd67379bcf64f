"""Ops that a program needs many times: written once in a block where they depend on no operand, else derived once.

A *free* value follows from the text of the program and the device alone: a constant, the device's number, arithmetic on both. A
*recipe* is a list of other ops by name, result types and attributes, whose operands are the inputs of the recipe, results of its
ops, or free values:

    input 0, then  mesh.all_gather(0) : tensor<8x16xf32> {gather_axis = 1, …},  stablehlo.reshape(1) : tensor<128xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import ir

Attributes = dict[str, ir.Attribute]


class _Note(NamedTuple):
    """One op. Operands go by number: of a recipe the inputs first, then the results in order; `~n` is the free value `n`."""

    name: str
    types: Sequence[ir.Type]
    operands: list[int]
    attributes: Attributes
    combiner: str = ""
    "Of an op whose body joins two scalars: the operation that does."


class FreeValues:
    """The free values of one program: by number what writes them, and which are there in the blocks around."""

    def __init__(self) -> None:
        self._notes: list[_Note | None] = []
        "None for a value that was added, and is never written."
        self._known: dict[Hashable, int] = {}
        self._blocks: list[dict[int, tuple[ir.Operation, ir.Value]]] = [{}]
        self._numbers: dict[ir.Value, int] = {}

    def enter_block(self) -> None:
        """What is written from here on is only there in this block and below."""
        self._blocks.append({})

    def leave_block(self) -> None:
        self._blocks.pop()

    def add(self, value: ir.Value) -> ir.Value:
        """Makes one of these of a value that is there before any op needs one; returns it."""
        number = self._numbers[value] = len(self._notes)
        self._notes.append(None)
        self._blocks[0][number] = op_of(value), value
        return value

    def number(self, value: ir.Value) -> int | None:
        """The number of a value, if it is one of these."""
        return self._numbers.get(value)

    def described(self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes) -> int | None:
        """The number of what such an op gives; None where that is more than one value, or depends on one that is not free."""
        if len(types) != 1:
            return None
        numbers = [self._numbers.get(operand) for operand in operands]
        if None in numbers:
            return None
        key = (name, types[0], *numbers, *attributes.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self._notes)
            self._notes.append(_Note(name, types, [number for number in numbers if number is not None], attributes))
        return found

    def written(self, number: int, emit: Builder) -> tuple[ir.Operation, ir.Value]:
        """The free value of that number and the op that gives it: what is there, or new ones."""
        for block in reversed(self._blocks):
            found: tuple[ir.Operation, ir.Value] | None = block.get(number)
            if found is not None:
                return found
        note = self._notes[number]
        assert note is not None, "a value that was added is there"
        name, types, operands, attributes, _ = note
        op = emit.create(name, types, [self.written(operand, emit)[1] for operand in operands], attributes)
        value: ir.Value = op.results[0]
        self._blocks[-1][number] = op, value
        self._numbers[value] = number
        return op, value

    def claim(self, value: ir.Value) -> None:
        """Leaves `value` to one user, who says more of it than holds for others: the next that needs such is given another."""
        number = self._numbers.pop(value, None)
        if number is not None and self._notes[number] is not None:
            for block in self._blocks:
                if number in block and block[number][1] == value:
                    del block[number]


@dataclass(frozen=True)
class SharingBuilder(Builder):
    """Writes no free value that is there already."""

    free: FreeValues

    def create(
        self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes, regions: int = 0
    ) -> ir.Operation:
        number = None if regions else self.free.described(name, types, operands, attributes)
        if number is not None:
            return self.free.written(number, Builder(self.loc, self.ip))[0]
        return self._dependent(name, types, operands, attributes, regions)

    def _dependent(
        self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes, regions: int
    ) -> ir.Operation:
        """Writes an op that gives no free value."""
        return super().create(name, types, operands, attributes, regions)


@dataclass(frozen=True)
class _NotingBuilder(SharingBuilder):
    """Takes note of what it writes."""

    numbers: dict[ir.Value, int]
    notes: list[_Note | None]
    "None for an op that cannot be written from a note: it has regions, or takes a value that no note tells of."

    def _dependent(
        self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes, regions: int
    ) -> ir.Operation:
        made = super()._dependent(name, types, operands, attributes, regions)
        numbers = [self._number(operand) for operand in operands]
        known = [number for number in numbers if number is not None]
        self.notes.append(_Note(name, types, known, attributes) if not regions and len(known) == len(numbers) else None)
        for value in made.results:
            self.numbers[value] = len(self.numbers)
        return made

    def combining(self, name: str, result: ir.Type, operands: Sequence[ir.Value], attrs: Attributes, combiner: str) -> ir.Value:
        made = super().combining(name, result, operands, attrs, combiner)
        numbers = [self._number(operand) for operand in operands]
        known = [number for number in numbers if number is not None]
        self.notes[-1] = _Note(name, [result], known, attrs, combiner) if len(known) == len(numbers) else None
        return made

    def _number(self, value: ir.Value) -> int | None:
        free = self.free.number(value)
        return self.numbers.get(value) if free is None else ~free


class Recipes:
    """The recipes of one program, by what their ops follow from."""

    def __init__(self, free: FreeValues) -> None:
        self.free = free
        self._known: dict[Hashable, tuple[list[_Note], int] | None] = {}

    def value(self, key: Hashable, inputs: Sequence[ir.Value], emit: Builder, make: Callable[[Builder], ir.Value]) -> ir.Value:
        """What `make` writes of `inputs`, which is to depend on nothing but the `key`, and is to write with its builder alone."""
        if (recipe := self._known.get(key)) is not None:
            return self._write(*recipe, inputs, emit)
        if key in self._known:
            return make(emit)
        numbers = {value: number for number, value in enumerate(inputs)}
        noting = _NotingBuilder(emit.loc, emit.ip, self.free, numbers, [])
        made = make(noting)
        notes = [note for note in noting.notes if note is not None]
        can_be_written = made in numbers and len(notes) == len(noting.notes)
        self._known[key] = (notes, numbers[made]) if can_be_written else None
        return made

    def _write(self, notes: Sequence[_Note], result: int, inputs: Sequence[ir.Value], emit: Builder) -> ir.Value:
        values = list(inputs)
        for name, types, operands, attributes, combiner in notes:
            needed = [values[operand] if operand >= 0 else self.free.written(~operand, emit)[1] for operand in operands]
            if combiner:
                values.append(emit.combining(name, types[0], needed, attributes, combiner))
            else:
                values.extend(emit.create(name, types, needed, attributes).results)
        return values[result]
