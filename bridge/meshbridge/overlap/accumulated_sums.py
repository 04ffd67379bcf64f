"""What a loop adds up over its trips, and what is communicated of it behind the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshbridge.analysis.known_values import Splat, known
from meshbridge.collectives import joins
from meshbridge.collectives.accumulations import MOVING, REDUCING
from meshbridge.collectives.rewriter import ELEMENTWISE
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.linear import is_reshape

COLLECTIVES = MOVING | REDUCING
"""Those that stand behind loops which add up."""

_ARRANGING = COLLECTIVES | {AllSliceOp.OPERATION_NAME, "stablehlo.transpose"}


@dataclass(frozen=True)
class Sum:
    """A value to which a loop adds something in every trip, and what is communicated of it."""

    number: int
    "Of the loop's results."
    addition: ir.Operation
    "In the loop's body."
    communicated: tuple[ir.Operation, ...]
    "Behind the loop, up to the last collective: each reads what the one before it gives, and nothing else does."

    @property
    def collectives(self) -> tuple[ir.Operation, ...]:
        return tuple(op for op in self.communicated if op.name in COLLECTIVES)


def reduced_sums(loop: ir.Operation) -> Iterator[Sum]:
    """The sums of `loop` that are reduced over devices behind it."""
    for number, result in enumerate(loop.results):
        communicated = _communicated(result)
        if any(op.name in REDUCING for op in communicated) and (addition := _addition(loop, number)) is not None:
            yield Sum(number, addition, communicated)


def only_reader(value: ir.Value) -> ir.Operation | None:
    """The operation that reads `value`, if there is one that does, once."""
    uses = list(value.uses)
    return uses[0].owner.operation if len(uses) == 1 else None


def is_only_returned(value: ir.Value, number: int) -> bool:
    """Whether the block that makes `value` returns it at that number, and nothing else reads it."""
    end = only_reader(value)
    if end is None or end.name != "stablehlo.return" or end.block != op_of(value).block:
        return False
    returned: bool = end.operands[number] == value
    return returned


def arranges(op: ir.Operation) -> bool:
    """Whether `op` computes, moves or communicates elements of one operand, perhaps joined with numbers or what is broadcast."""
    if op.name in ELEMENTWISE:
        return sum(not _is_spread(value) for value in op.operands) == 1
    return op.name in _ARRANGING or is_reshape(op)


def _is_spread(value: ir.Value) -> bool:
    if isinstance(known(value), Splat):
        return True
    return (
        not isinstance(value.owner, ir.Block)
        and value.owner.name == "stablehlo.broadcast_in_dim"
        and not is_reshape(op_of(value))
    )


def _addition(loop: ir.Operation, number: int) -> ir.Operation | None:
    """What joins the carried value of that number with another one, if nothing else is done with it."""
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    op = only_reader(carried)
    if op is None or list(tested.uses) or op.name not in joins.NAMES or op.block != loop.regions[1].blocks[0]:
        return None
    return op if is_only_returned(op.results[0], number) else None


def _communicated(value: ir.Value) -> tuple[ir.Operation, ...]:
    block, found = op_of(value).block, list[ir.Operation]()
    while (op := only_reader(value)) is not None and op.block == block and arranges(op):
        found.append(op)
        value = op.results[0]
    while found and found[-1].name not in COLLECTIVES:
        found.pop()
    return tuple(found)
