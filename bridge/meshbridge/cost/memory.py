"""How much memory one device needs: which values are alive, op by op of one device's program.

The estimate is of what XLA does with the program, without asking it. Buffers are taken in program order, each from the operation
that fills it to the last one that reads it, with three exceptions:

- What a loop over its readers would compute on the way has no buffer: broadcasts, iotas, constants, views, and a value of
  elementwise or rearranging operations with one reader that does the like. Its operands live until that reader runs instead.
- A result reuses the buffer of an operand of its size that is not read afterwards, where the operation allows it.
- Values that a loop carries have one buffer for all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import REGION_OPS, ir, walk
from meshbridge.ops.elementwise import ELEMENTWISE

_VIEWS = frozenset(
    {"stablehlo.reshape", "stablehlo.optimization_barrier", "stablehlo.bitcast_convert", "sdy.sharding_constraint"}
)
"""The bytes of the operand under another name."""

_FREE = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.iota", "stablehlo.constant", "stablehlo.partition_id"})
"""Made anew by whoever reads them."""

_REARRANGING = frozenset(
    f"stablehlo.{name}" for name in ("transpose", "slice", "pad", "reverse", "dynamic_slice", "concatenate", "gather")
) | {"mesh.all_slice"}

_FUSING = ELEMENTWISE | _REARRANGING
"""Can be computed on the way by a reader that is one of these."""

_READING = _FUSING | _FREE | _VIEWS | {"stablehlo.reduce", "stablehlo.dynamic_update_slice"}
"""Can compute their operands on the way."""

_IN_PLACE = ELEMENTWISE | {
    "stablehlo.dynamic_update_slice",
    "stablehlo.scatter",
    "stablehlo.sort",
    "stablehlo.while",
    "mesh.all_reduce",
    "stablehlo.all_reduce",
}
"""Can write over their operands."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device: its shards of the arguments and results, and the most that is alive of everything else at one time."""

    arguments: float
    results: float
    temporaries: float

    @property
    def peak(self) -> float:
        """All three together: arguments are not donated, and results have their own buffers."""
        return self.arguments + self.results + self.temporaries


def memory(function: ir.Operation) -> Memory:
    """The estimate for a function of one device's program."""
    block = function.regions[0].blocks[0]
    operations = [view.operation for view in block.operations]
    returned = list(operations[-1].operands)
    arguments = sum(map(tensor_bytes, block.arguments))
    results = sum(map(tensor_bytes, returned))
    return Memory(arguments, results, _Block(operations, owned=(), given=set(returned)).peak())


class _Block:
    """The values alive in one block, beside those of the blocks around it.

    `owned` are values that live outside, in buffers that this block may write over; `given` those whose buffer is the caller's.
    """

    def __init__(self, operations: Sequence[ir.Operation], owned: Iterable[ir.Value], given: set[ir.Value]) -> None:
        self.operations = operations
        self.given = given
        self.last: dict[ir.Value, int] = {}
        self.readers: dict[ir.Value, list[ir.Operation]] = {}
        for position, op in enumerate(operations):
            for value in _read_by(op):
                self.last[value] = position
                self.readers.setdefault(value, []).append(op)
        self.sources = {value: found for op in operations for value, found in self._computed_on_the_way(op)}
        "For values without a buffer, what must live instead."
        self.moved: dict[ir.Value, int] = {}
        "For values that are read on the way at other positions than the result has, the last position where that happens."
        in_place = {value for op in operations if op.name in ELEMENTWISE | _VIEWS for value in op.results}
        for value in reversed(self.sources):
            last = self.last.get(value, 0)
            moved = self.moved.get(value, 0) if value in in_place else last
            for source in self.sources[value]:
                self.last[source] = max(self.last.get(source, 0), last)
                self.moved[source] = max(self.moved.get(source, 0), moved)
        self.alive = dict.fromkeys(owned, 0.0)
        "Bytes of this block's own that the value takes: none for what stands outside."

    def _computed_on_the_way(self, op: ir.Operation) -> Iterable[tuple[ir.Value, Sequence[ir.Value]]]:
        """Results of `op` that have no buffer, each with what it is computed from."""
        if op.name == "stablehlo.while":
            body = op.regions[1].blocks[0]
            yielded = list(body.operations)[-1].operation.operands
            for result, initial, argument, value in zip(op.results, op.operands, body.arguments, yielded, strict=True):
                if argument == value:  # only read in there
                    yield result, [initial]
            return
        for result in op.results:
            readers = self.readers.get(result, [])
            fused = op.name in _FUSING and len(readers) == 1 and readers[0].name in _READING
            if fused or op.name in _FREE or op.name in _VIEWS:
                yield result, list(op.operands)

    def peak(self) -> float:
        """The most bytes alive at one time."""
        dying: dict[int, list[ir.Value]] = {}
        for value, position in self.last.items():
            dying.setdefault(position, []).append(value)
        held = most = 0.0
        for position, op in enumerate(self.operations):
            dead = dying.get(position, [])
            free = [value for value in dead if value in self.alive and self.moved.get(value, -1) < position]
            made = [result for result in op.results if result not in self.sources and result not in self.given]
            for result in made:
                size = tensor_bytes(result)
                place = next((value for value in free if tensor_bytes(value) == size), None) if op.name in _IN_PLACE else None
                if place is not None:
                    free.remove(place)
                    self.alive[result] = self.alive.pop(place)
                else:
                    self.alive[result] = size
                    held += size
            most = max(most, held + self._inner_peak(op))
            for value in (*dead, *(result for result in made if result not in self.last)):
                held -= self.alive.pop(value, 0.0)
        return most

    def _inner_peak(self, op: ir.Operation) -> float:
        """What the regions of a loop or branch need beside what it carries."""
        if op.name not in REGION_OPS:
            return 0.0
        peaks = []
        for region in op.regions:
            block = region.blocks[0]
            operations = [view.operation for view in block.operations]
            given = set() if op.name == "stablehlo.while" else set(operations[-1].operands)
            peaks.append(_Block(operations, block.arguments, given).peak())
        return max(peaks, default=0.0)


def _read_by(op: ir.Operation) -> Iterable[ir.Value]:
    """The operands of `op` and whatever its regions use from outside (and inside, which nobody asks for)."""
    if not len(op.regions):
        return op.operands
    return [value for inner in walk(op) for value in inner.operands]
