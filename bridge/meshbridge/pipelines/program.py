"""A program with a loop of microbatches: its ops in three parts, and its values by where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op, look_through
from meshbridge.pipelines.loop import SHARD, MicrobatchLoop
from meshbridge.pipelines.reads import Reads


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """The ops before the loop, in it, and after it, and what they read. Carried values are those of the loop that change."""

    loop: MicrobatchLoop

    @cached_property
    def reads(self) -> Reads:
        """What ops read. Arguments of the program, and what the loop carries unchanged, do not change."""
        body = self.loop.body
        unchanged = (body.arguments[number] for number in self._unchanged)
        return Reads({*self.loop.block.arguments, *unchanged}, self.loop.shardings)

    @cached_property
    def invariant(self) -> dict[int, ir.Value]:
        """By number, the values that each microbatch leaves unchanged, as they are before the loop."""
        return {number: self.reads.original(self.loop.op.operands[number]) for number in self._unchanged}

    @cached_property
    def _unchanged(self) -> list[int]:
        arguments = self.loop.body.arguments
        yielded = enumerate(self.loop.yielded())
        return [number for number, value in yielded if look_through(value, (SHARD,)) == arguments[number]]

    @cached_property
    def carried(self) -> dict[ir.Value, int]:
        """The numbers of the carried values, by the argument of the body."""
        arguments = enumerate(self.loop.body.arguments)
        return {argument: number for number, argument in arguments if number not in self._unchanged}

    @cached_property
    def final(self) -> dict[ir.Value, int]:
        """The numbers of the carried values, by the loop's result."""
        results = enumerate(self.loop.op.results)
        return {result: number for number, result in results if number not in self._unchanged}

    @cached_property
    def _entering(self) -> dict[ir.Value, ir.Value]:
        views = (self.loop.body.arguments, self.loop.op.results)
        return {view[number]: value for view in views for number, value in self.invariant.items()}

    def entering(self, value: ir.Value) -> ir.Value:
        """The value before the loop of one that the loop leaves unchanged; any other value itself."""
        return self._entering.get(value, value)

    @cached_property
    def yielded(self) -> list[ir.Value]:
        """The loop's values after a microbatch, by number."""
        return self.loop.yielded()

    def next_leaves(self, number: int) -> tuple[ir.Value, ...]:
        """The values from which a carried value is computed for the next microbatch."""
        return self.reads.leaves(self.yielded[number])

    @cached_property
    def before(self) -> list[ir.Operation]:
        """The ops before the loop that are computed once, not by each reader of their results."""
        ops = [view.operation for view in self.loop.block.operations]
        return self._computed(ops[: ops.index(self.loop.op)])

    @cached_property
    def inside(self) -> list[ir.Operation]:
        """Those of a microbatch."""
        return self._computed([view.operation for view in self.loop.body.operations])

    @cached_property
    def after(self) -> list[ir.Operation]:
        """Those after the loop."""
        ops = [view.operation for view in self.loop.block.operations]
        return self._computed(ops[ops.index(self.loop.op) + 1 :])

    def _computed(self, ops: list[ir.Operation]) -> list[ir.Operation]:
        return [op for op in ops if op.results and not self.reads.is_copied(op)]


def key_of(value: ir.Value) -> ir.Value | None:
    """The first result of the op that defines `value`, by which ops are kept; None for an argument of a block."""
    op = defining_op(value)
    return None if op is None else op.results[0]
