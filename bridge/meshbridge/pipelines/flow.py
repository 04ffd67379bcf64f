"""Positions of the ops of a microbatch by data flow: what cuts at boundaries and what finds cuts have in common.

Positions are ordered `F0 < F1 < … < B1 < B0`: chunks forward, then backward. No op is before what it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshbridge.ir.mlir import ir
from meshbridge.ops.traits import Trait, has
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.sites import Chunks

Positions = dict[ir.Value, int]


def is_costly(op: ir.Operation) -> bool:
    """Whether an op costs more than to send its result."""
    return has(op.name, Trait.CONTRACTION) or has(op.name, Trait.CONTROL_FLOW) or not has(op.name, Trait.PURE)


def last_position(known: Mapping[ir.Value, int], values: Iterable[ir.Value]) -> int | None:
    """The last of the positions of `values` that have one; None if none has."""
    return max((known[value] for value in values if value in known), default=None)


@dataclass(frozen=True, eq=False)
class Flow(ABC):
    """Finds the positions of a program's values."""

    program: LoopProgram
    chunks: Chunks
    begins: tuple[int, ...] | None = None
    "The points at which each chunk but the first begins, a subset of `points`, in order; by default `even`."

    @property
    @abstractmethod
    def points(self) -> tuple[int, ...]:
        """The points at which a chunk may begin, in order."""

    @property
    @abstractmethod
    def even(self) -> tuple[int, ...]:
        """The points at which each chunk but the first begins if chunks are as equal as possible."""

    @abstractmethod
    def position(self, op: ir.Operation, known: Mapping[ir.Value, int], carries: bool) -> int | None:
        """The position of an op, by those of what it reads; None for one that may be anywhere. `carries` tells whether positions
        of carried values are known. Raises OpError for a stage that needs a value of a later one."""

    def positions(self) -> Positions:
        """Repeats until each carried value has the position of the op that computes it for the next microbatch."""
        program = self.program
        known: Positions = {}
        changed = True
        while changed:
            carries = not known.keys().isdisjoint(program.carried)
            for op in program.inside:
                if (position := self.position(op, known, carries)) is not None:
                    known |= dict.fromkeys(op.results, position)
            changed = False
            for argument, number in program.carried.items():
                position = last_position(known, program.next_leaves(number))
                if position is not None and position != known.get(argument):
                    known[argument] = position
                    changed = True
        return known
