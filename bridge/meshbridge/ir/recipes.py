"""Repeated ops of a program: written once per block if they depend on no operand, else derived once and replayed.

A *free* value depends only on the text of the program and the device: a constant, the device's number, arithmetic on both. A
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
    """One op. Operands are numbers: in a recipe the inputs first, then the results in order; `~n` is the free value `n`."""

    name: str
    types: Sequence[ir.Type]
    operands: list[int]
    attributes: Attributes
    combiner: str = ""
    "For an op whose body combines two scalars, the combining operation."


class FreeValues:
    """The free values of one program: the op of each, by number, and those that exist in the blocks around."""

    def __init__(self) -> None:
        self._notes: list[_Note | None] = []
        "None for a value that was added and is never written."
        self._known: dict[Hashable, int] = {}
        self._blocks: list[dict[int, tuple[ir.Operation, ir.Value]]] = [{}]
        self._numbers: dict[ir.Value, int] = {}

    def enter_block(self) -> None:
        """Begins a block; values written from here on exist only in it and below."""
        self._blocks.append({})

    def leave_block(self) -> None:
        self._blocks.pop()

    def add(self, value: ir.Value) -> ir.Value:
        """Registers an existing value as free and returns it."""
        number = self._numbers[value] = len(self._notes)
        self._notes.append(None)
        self._blocks[0][number] = op_of(value), value
        return value

    def number(self, value: ir.Value) -> int | None:
        """The number of a value, if it is free."""
        return self._numbers.get(value)

    def described(self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes) -> int | None:
        """The number of such an op's value; None if the op has several results, or depends on a value that is not free."""
        if len(types) != 1:
            return None
        numbers = [self._numbers.get(operand) for operand in operands]
        if None in numbers:
            return None
        key = (name, types[0], *numbers, *attributes.items())
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._notes)
            self._notes.append(_Note(name, types, [operand for operand in numbers if operand is not None], attributes))
        return number

    def written(self, number: int, emit: Builder) -> tuple[ir.Operation, ir.Value]:
        """The free value of that number and its op, written now if it does not exist yet."""
        for block in reversed(self._blocks):
            existing: tuple[ir.Operation, ir.Value] | None = block.get(number)
            if existing is not None:
                return existing
        note = self._notes[number]
        assert note is not None, "a value that was added is there"
        name, types, operands, attributes, _ = note
        op = emit.create(name, types, [self.written(operand, emit)[1] for operand in operands], attributes)
        value: ir.Value = op.results[0]
        self._blocks[-1][number] = op, value
        self._numbers[value] = number
        return op, value

    def claim(self, value: ir.Value) -> None:
        """Reserves `value` for one user, who annotates it; the next user gets another copy."""
        number = self._numbers.pop(value, None)
        if number is not None and self._notes[number] is not None:
            for block in self._blocks:
                if number in block and block[number][1] == value:
                    del block[number]


@dataclass(frozen=True)
class SharingBuilder(Builder):
    """Reuses free values that already exist."""

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
        """Creates an op whose results are not free."""
        return super().create(name, types, operands, attributes, regions)


@dataclass(frozen=True)
class _NotingBuilder(SharingBuilder):
    """Records the ops that it creates."""

    numbers: dict[ir.Value, int]
    notes: list[_Note | None]
    "None for an op that cannot be replayed: it has regions, or an operand without a note."

    def _dependent(
        self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes, regions: int
    ) -> ir.Operation:
        op = super()._dependent(name, types, operands, attributes, regions)
        self.notes.append(None if regions else self._note(name, types, operands, attributes))
        for value in op.results:
            self.numbers[value] = len(self.numbers)
        return op

    def combining(self, name: str, result: ir.Type, operands: Sequence[ir.Value], attrs: Attributes, combiner: str) -> ir.Value:
        value = super().combining(name, result, operands, attrs, combiner)
        self.notes[-1] = self._note(name, [result], operands, attrs, combiner)
        return value

    def _note(
        self, name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value], attributes: Attributes, combiner: str = ""
    ) -> _Note | None:
        numbers = [number for operand in operands if (number := self._number(operand)) is not None]
        return _Note(name, types, numbers, attributes, combiner) if len(numbers) == len(operands) else None

    def _number(self, value: ir.Value) -> int | None:
        free = self.free.number(value)
        return self.numbers.get(value) if free is None else ~free


class Recipes:
    """The recipes of one program, by key."""

    def __init__(self, free: FreeValues) -> None:
        self.free = free
        self._known: dict[Hashable, tuple[list[_Note], int] | None] = {}

    def value(self, key: Hashable, inputs: Sequence[ir.Value], emit: Builder, make: Callable[[Builder], ir.Value]) -> ir.Value:
        """The value that `make` builds from `inputs`, with its builder alone; it may depend on nothing but the `key`."""
        if (recipe := self._known.get(key)) is not None:
            return self._write(*recipe, inputs, emit)
        if key in self._known:
            return make(emit)
        numbers = {given: number for number, given in enumerate(inputs)}
        noting = _NotingBuilder(emit.loc, emit.ip, self.free, numbers, [])
        value = make(noting)
        notes = [note for note in noting.notes if note is not None]
        can_be_written = value in numbers and len(notes) == len(noting.notes)
        self._known[key] = (notes, numbers[value]) if can_be_written else None
        return value

    def _write(self, notes: Sequence[_Note], result: int, inputs: Sequence[ir.Value], emit: Builder) -> ir.Value:
        values = list(inputs)
        for name, types, operands, attributes, combiner in notes:
            needed = [values[operand] if operand >= 0 else self.free.written(~operand, emit)[1] for operand in operands]
            if combiner:
                values.append(emit.combining(name, types[0], needed, attributes, combiner))
            else:
                values.extend(emit.create(name, types, needed, attributes).results)
        return values[result]
