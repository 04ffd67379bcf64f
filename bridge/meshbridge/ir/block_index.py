"""The operations of a block and the values that they read, by number: read from MLIR once, instead of at each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import has_no_regions, ir, walk
from meshbridge.ir.passes import Analyses, Recomputable


class ValueNumbers(dict[ir.Value, int]):
    """The numbers of the values of a module: looking up a number is many times faster than asking MLIR which values are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[ir.Value] = []
        "The values by number."
        self._sizes: dict[int, float] = {}
        self._size_of: dict[ir.Type, float] = {}

    def __missing__(self, value: ir.Value) -> int:
        number = self[value] = len(self.all)
        self.all.append(value)
        return number

    def tensor_bytes(self, number: int) -> float:
        """`tensor_bytes` of the value of a number."""
        size = self._sizes.get(number)
        if size is None:
            type_ = self.all[number].type
            size = self._size_of.get(type_)
            if size is None:
                size = self._size_of[type_] = tensor_bytes(self.all[number])
            self._sizes[number] = size
        return size


class BlockOp(NamedTuple):
    """An operation of a block, with values by number."""

    op: ir.Operation
    name: str
    operands: Sequence[int]
    results: Sequence[int]
    read: Sequence[int]
    "The operands, and those of all operations in its regions."

    @classmethod
    def of(cls, op: ir.Operation, values: ValueNumbers) -> BlockOp:
        """The operation, read from MLIR."""
        number = values.__getitem__
        operands = tuple(map(number, op.operands))
        read = tuple([number(value) for inner in walk(op) for value in inner.operands]) if len(op.regions) else operands
        return cls(op, op.name, operands, tuple(map(number, op.results)), read)

    @classmethod
    def all_of(cls, block: ir.Block, values: ValueNumbers) -> list[BlockOp]:
        """The operations of a block: for most, their class tells the name, and that they have no regions."""
        number = values.__getitem__
        names: dict[type[ir.OpView], str] = {}
        operations = []
        for view in block.operations:
            kind, op = type(view), view.operation
            name = names.get(kind)
            if name is None:
                if not has_no_regions(view):
                    operations.append(cls.of(op, values))
                    continue
                name = names[kind] = op.name
            operands = tuple(map(number, op.operands))
            operations.append(cls(op, name, operands, tuple(map(number, op.results)), operands))
        return operations


class BlockIndex:
    """The operations of a block that does not change meanwhile."""

    def __init__(self, block: ir.Block, values: ValueNumbers | None = None) -> None:
        self.block = block
        self.values = ValueNumbers() if values is None else values
        self.operations = BlockOp.all_of(block, self.values)
        self.makers: dict[int, int] = {}
        "By result, the number of its operation."
        self.readers: dict[int, list[int]] = {}
        "By value, the numbers of the operations that read it, also in their regions: each once, in program order."
        readers = self.readers
        for number, (_, _, _, results, read) in enumerate(self.operations):
            for result in results:
                self.makers[result] = number
            for value in read:
                of_value = readers.get(value)
                if of_value is None:
                    readers[value] = [number]
                elif of_value[-1] != number:
                    of_value.append(number)

    @staticmethod
    def of(block: ir.Block, analyses: Analyses) -> BlockIndex:
        """The index of a block of the module that these analyses are of."""
        indexes: _Indexes = analyses.setdefault(_Indexes, _Indexes())
        if block not in indexes.by_block:
            indexes.by_block[block] = BlockIndex(block, indexes.values)
        return indexes.by_block[block]

    def maker(self, value: int) -> BlockOp | None:
        """The operation of this block that computes a value."""
        number = self.makers.get(value)
        return None if number is None else self.operations[number]

    def readers_of(self, value: int) -> Sequence[int]:
        """The numbers of the operations of this block that read a value, in program order."""
        return self.readers.get(value, ())


@dataclass
class _Indexes(Recomputable):
    values: ValueNumbers = field(default_factory=ValueNumbers)
    by_block: dict[ir.Block, BlockIndex] = field(default_factory=dict)
