"""How much memory one device needs: which values are alive, op by op of one device's program.

The estimate is of what XLA does with the program, without asking it. Buffers are taken in program order, each from the operation
that fills it to the last one that reads it, with three exceptions:

- What a loop over its readers would compute on the way has no buffer (`fusion`). Its operands live until that reader runs.
- A result reuses the buffer of an operand of its size that is not read afterwards, where the operation allows it.
- Values that a loop carries have one buffer for all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshbridge.cost.fusion import VIEWS, Fusion, read_by
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import REGION_OPS, entries, ir
from meshbridge.ops.elementwise import ELEMENTWISE

_IN_PLACE = ELEMENTWISE | {
    "stablehlo.dynamic_update_slice",
    "stablehlo.scatter",
    "stablehlo.sort",
    "stablehlo.while",
    "mesh.all_reduce",
    "stablehlo.all_reduce",
}
"""Can write over their operands."""

_ALIASED, _DONOR = "tf.aliasing_output", "jax.buffer_donor"


@dataclass(frozen=True)
class Memory:
    """Bytes of one device: its shards of the arguments and results, and the most that is alive of everything else at one time."""

    arguments: float
    results: float
    temporaries: float
    donated: float = 0.0
    "Of the results, those that take the buffers of arguments."

    @property
    def peak(self) -> float:
        """All together, what is donated once."""
        return self.arguments + self.results - self.donated + self.temporaries


def memory(function: ir.Operation) -> Memory:
    """The estimate for a function of one device's program."""
    block = function.regions[0].blocks[0]
    operations = [view.operation for view in block.operations]
    returned = list(operations[-1].operands)
    arguments = sum(map(tensor_bytes, block.arguments))
    results = sum(map(tensor_bytes, returned))
    temporaries = _Block(operations, owned=(), given=set(returned)).peak()
    return Memory(arguments, results, temporaries, _donated(function, list(block.arguments), returned))


def _donated(function: ir.Operation, arguments: Sequence[ir.Value], results: Sequence[ir.Value]) -> float:
    """Bytes of the results that take the buffers of arguments: of those that `tf.aliasing_output` names, or, for arguments with
    `jax.buffer_donor`, of the first of the same type that is left."""
    donors = []
    taken: set[int] = set()
    for argument, entry in zip(arguments, entries(function, "arg_attrs"), strict=True):
        if _ALIASED in entry:
            taken.add(int(ir.IntegerAttr(entry[_ALIASED]).value))
        elif _DONOR in entry:
            donors.append(argument)
    left: dict[ir.Type, list[int]] = {}
    for number in reversed(range(len(results))):
        if number not in taken:
            left.setdefault(results[number].type, []).append(number)
    taken.update(left[donor.type].pop() for donor in donors if left.get(donor.type))
    return sum((tensor_bytes(results[number]) for number in taken), 0.0)


class _Block:
    """The values alive in one block, beside those of the blocks around it.

    `owned` are values that live outside, in buffers that this block may write over; `given` those whose buffer is the caller's.
    """

    def __init__(self, operations: Sequence[ir.Operation], owned: Iterable[ir.Value], given: set[ir.Value]) -> None:
        self.operations = operations
        self.given = given
        self.last: dict[ir.Value, int] = {}
        for position, op in enumerate(operations):
            for value in read_by(op):
                self.last[value] = position
        self.sources = Fusion(operations).sources
        self.moved: dict[ir.Value, int] = {}
        "For values that are read on the way at other positions than the result has, the last position where that happens."
        in_place = {value for op in operations if op.name in ELEMENTWISE | VIEWS for value in op.results}
        for value in reversed(self.sources):
            last = self.last.get(value, 0)
            moved = self.moved.get(value, 0) if value in in_place else last
            for source in self.sources[value]:
                self.last[source] = max(self.last.get(source, 0), last)
                self.moved[source] = max(self.moved.get(source, 0), moved)
        self.alive = dict.fromkeys(owned, 0.0)
        "Bytes of this block's own that the value takes: none for what stands outside."

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
