"""The operations of a block by number, with makers and readers of values: read from MLIR once, instead of at each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshbridge.ir.mlir import ir, walk
from meshbridge.ir.passes import Analyses, Recomputable


class BlockOp(NamedTuple):
    """An operation of a block."""

    op: ir.Operation
    name: str
    operands: Sequence[ir.Value]
    results: Sequence[ir.Value]
    read: Sequence[ir.Value]
    "The operands, and those of all operations in its regions."

    @classmethod
    def of(cls, op: ir.Operation) -> BlockOp:
        """The operation, read from MLIR."""
        operands = tuple(op.operands)
        return cls(op, op.name, operands, tuple(op.results), tuple(_read_in_regions(op)) if len(op.regions) else operands)


def _read_in_regions(op: ir.Operation) -> Iterator[ir.Value]:
    return (value for inner in walk(op) for value in inner.operands)


class BlockIndex:
    """The operations of a block that does not change meanwhile."""

    def __init__(self, block: ir.Block) -> None:
        self.block = block
        self.operations = [BlockOp.of(view.operation) for view in block.operations]
        self.makers: dict[ir.Value, int] = {}
        "By result, the number of its operation."
        self.readers: dict[ir.Value, list[int]] = {}
        "By value, the numbers of the operations that read it, also in their regions: each once, in program order."
        readers = self.readers
        for number, (_, _, _, results, read) in enumerate(self.operations):
            for result in results:
                self.makers[result] = number
            for value in read:
                known = readers.get(value)
                if known is None:
                    readers[value] = [number]
                elif known[-1] != number:
                    known.append(number)

    @staticmethod
    def of(block: ir.Block, analyses: Analyses) -> BlockIndex:
        """The index of a block of the module that these analyses are of."""
        known: _Indexes = analyses.setdefault(_Indexes, _Indexes())
        if block not in known.by_block:
            known.by_block[block] = BlockIndex(block)
        return known.by_block[block]

    def maker(self, value: ir.Value) -> BlockOp | None:
        """The operation of this block that computes `value`."""
        number = self.makers.get(value)
        return None if number is None else self.operations[number]

    def readers_of(self, value: ir.Value) -> Sequence[int]:
        """The numbers of the operations of this block that read `value`, in program order."""
        return self.readers.get(value, ())


@dataclass
class _Indexes(Recomputable):
    by_block: dict[ir.Block, BlockIndex] = field(default_factory=dict)
