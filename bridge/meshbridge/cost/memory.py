"""How much memory one device needs: which values are alive, op by op of one device's program.

The estimate is of what XLA does with the program, without asking it. Buffers are taken in program order, each from the operation
that fills it to the last one that reads it, with three exceptions:

- What a loop over its readers would compute on the way has no buffer (`fusion`). Its operands live until that reader runs.
- A result reuses the buffer of an operand of its size that is not read afterwards, where the operation allows it.
- Values that a loop carries have one buffer for all its iterations; each takes that of its own initial value, if that is not read
  afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshbridge.cost.fusion import Fusion, read_by
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import REGION_OPS, entries, ir
from meshbridge.ops.traits import Trait, has, ops_with

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
    arguments, whole, returned = list(function.regions[0].blocks[0].arguments), _body(function), _returned(function)
    sizes = [sum(map(tensor_bytes, values)) for values in (arguments, returned)]
    return Memory(sizes[0], sizes[1], whole.peak(), _donated(function, returned))


def largest(function: ir.Operation, count: int) -> list[tuple[ir.Value, float]]:
    """The values that take the most bytes when a device needs the most memory: its shards of arguments, and temporaries."""
    arguments = {value: tensor_bytes(value) for value in function.regions[0].blocks[0].arguments}
    found = arguments | _body(function).at_peak()
    return sorted(found.items(), key=lambda each: -each[1])[:count]


def _returned(function: ir.Operation) -> list[ir.Value]:
    *_, last = function.regions[0].blocks[0].operations
    return list(last.operation.operands)


def _body(function: ir.Operation) -> _LiveBlock:
    operations = [view.operation for view in function.regions[0].blocks[0].operations]
    return _LiveBlock(operations, owned=(), given=set(_returned(function)))


def _donated(function: ir.Operation, results: Sequence[ir.Value]) -> float:
    """Bytes of the results that take the buffers of arguments."""
    return sum((tensor_bytes(results[number]) for number in donated_results(function)), 0.0)


def donated_results(function: ir.Operation) -> set[int]:
    """The numbers of the results that take the buffers of arguments: those that `tf.aliasing_output` names, or, for arguments
    with `jax.buffer_donor`, the first of the same type that is left."""
    arguments, results = list(function.regions[0].blocks[0].arguments), _returned(function)
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
    return taken | {left[donor.type].pop() for donor in donors if left.get(donor.type)}


class _LiveBlock:
    """The values alive in one block, beside those of the blocks around it.

    `owned` are values that live outside, in buffers that this block may write over; `given` those whose buffer is the caller's.
    """

    def __init__(self, operations: Sequence[ir.Operation], owned: Iterable[ir.Value], given: set[ir.Value]) -> None:
        self.operations = operations
        self.owned = tuple(owned)
        self.given = given
        self.last: dict[ir.Value, int] = {}
        for position, op in enumerate(operations):
            for value in read_by(op):
                self.last[value] = position
        self.sources = Fusion(operations).sources
        self.moved: dict[ir.Value, int] = {}
        "For values that are read on the way at other positions than the result has, the last position where that happens."
        in_place = {value for op in operations if op.name in ops_with(Trait.ELEMENTWISE, Trait.ALIASING) for value in op.results}
        for value in reversed(self.sources):
            last = self.last.get(value, 0)
            moved = self.moved.get(value, 0) if value in in_place else last
            for source in self.sources[value]:
                self.last[source] = max(self.last.get(source, 0), last)
                self.moved[source] = max(self.moved.get(source, 0), moved)
        self.alive = dict.fromkeys(self.owned, 0.0)
        "Bytes of this block's own that the value takes: none for what stands outside."

    def peak(self) -> float:
        """The most bytes alive at one time."""
        return max(
            (held + max((inner.peak() for inner in self._inner(op)), default=0.0) for op, held in self._walk()), default=0.0
        )

    def at_peak(self) -> dict[ir.Value, float]:
        """What is alive then, and how many bytes each takes. To be asked before anything else."""
        again = _LiveBlock(self.operations, self.owned, self.given)
        most, at, inside = -1.0, None, None
        for op, held in again._walk():
            inner = max(again._inner(op), key=_LiveBlock.peak, default=None)
            needed = held + (inner.peak() if inner is not None else 0.0)
            if needed > most:
                most, at, inside = needed, op, inner
        alive = next(({**self.alive} for op, _ in self._walk() if op == at), {})
        return alive | (inside.at_peak() if inside is not None else {})

    def _walk(self) -> Iterator[tuple[ir.Operation, float]]:
        """Each operation, and the bytes alive while it runs: those of `alive`."""
        dying: dict[int, list[ir.Value]] = {}
        for value, position in self.last.items():
            dying.setdefault(position, []).append(value)
        held = 0.0
        for position, op in enumerate(self.operations):
            dead = dying.get(position, [])
            free = [value for value in dead if value in self.alive and self.moved.get(value, -1) < position]
            made = [result for result in op.results if result not in self.sources and result not in self.given]
            for result in made:
                size = tensor_bytes(result)
                place = next((value for value in self._places(op, result, free) if tensor_bytes(value) == size), None)
                if place is not None:
                    free.remove(place)
                    self.alive[result] = self.alive.pop(place)
                else:
                    self.alive[result] = size
                    held += size
            yield op, held
            for value in (*dead, *(result for result in made if result not in self.last)):
                held -= self.alive.pop(value, 0.0)

    def _places(self, op: ir.Operation, result: ir.Value, free: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Of the values that are `free`, those whose buffers `result` of `op` can take: an elementwise op can write over any."""
        if has(op.name, Trait.ELEMENTWISE):
            return free
        if not has(op.name, Trait.IN_PLACE):
            return ()
        own: ir.Value = op.operands[ir.OpResult(result).result_number]
        while own in self.sources and has(ir.OpResult(own).owner.name, Trait.ALIASING):
            (own,) = self.sources[own]
        return [value for value in free if value == own]

    def _inner(self, op: ir.Operation) -> list[_LiveBlock]:
        """The regions of a loop or branch, which need memory beside what it carries."""
        blocks = [region.blocks[0] for region in op.regions] if op.name in REGION_OPS else []
        found = []
        for block in blocks:
            operations = [view.operation for view in block.operations]
            given = set() if op.name == "stablehlo.while" else set(operations[-1].operands)
            found.append(_LiveBlock(operations, block.arguments, given))
        return found
