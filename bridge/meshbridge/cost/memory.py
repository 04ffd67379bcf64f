"""The memory that one device needs, from the lifetimes of the values of its program.

This estimates XLA's buffer assignment without running XLA. A value has a buffer from the operation that writes it to the last one
that reads it, in program order, with three exceptions:

- What a loop over its readers would compute on the way has no buffer (`fusion`). Its operands live until that reader runs.
- A result reuses the buffer of an operand of its size that is not read afterwards, where the operation allows it.
- Values that a loop carries have one buffer for all its iterations; each takes that of its own initial value, if that is not read
  afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from meshbridge.cost.fusion import Fusion
from meshbridge.dialect.donation import ALIASED, DONOR
from meshbridge.ir.block_index import BlockIndex, BlockOp
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import REGION_OPS, entries, ir, terminator_operands
from meshbridge.ir.passes import Analyses, Recomputable
from meshbridge.ops.traits import Trait, has, ops_with

_IN_PLACE = ops_with(Trait.ELEMENTWISE, Trait.ALIASING)
"""Ops that read at most the bytes of an operand that they have written."""


@dataclass(frozen=True)
class Memory(Recomputable):
    """Bytes on one device: shards of arguments and results, and the peak of all other values."""

    arguments: float
    results: float
    temporaries: float
    donated: float = 0.0
    "Bytes of the results that take the buffers of arguments."

    @property
    def peak(self) -> float:
        """The sum, in which donated buffers count once."""
        return self.arguments + self.results - self.donated + self.temporaries


def memory(function: ir.Operation, analyses: Analyses | None = None) -> Memory:
    """The memory of the function of one device's program that is its entry; `analyses` of its module have it, or get it."""
    analyses = {} if analyses is None else analyses
    if Memory not in analyses:
        arguments, whole, returned = list(function.regions[0].blocks[0].arguments), _body(function, analyses), _returned(function)
        sizes = [sum(map(tensor_bytes, values)) for values in (arguments, returned)]
        analyses[Memory] = Memory(sizes[0], sizes[1], whole.peak(), _donated(function, returned))
    of_entry: Memory = analyses[Memory]
    return of_entry


def largest_values(function: ir.Operation, count: int, analyses: Analyses | None = None) -> list[tuple[ir.Value, float]]:
    """The values that take the most bytes at the peak: shards of arguments, and temporaries. For `analyses` see `memory`."""
    arguments = {value: tensor_bytes(value) for value in function.regions[0].blocks[0].arguments}
    body = _body(function, {} if analyses is None else analyses)
    sizes = arguments | {body.index.values.all[value]: size for value, size in body.at_peak().items()}
    return sorted(sizes.items(), key=lambda entry: -entry[1])[:count]


def _returned(function: ir.Operation) -> list[ir.Value]:
    return terminator_operands(function.regions[0].blocks[0])


def _body(function: ir.Operation, analyses: Analyses) -> _LiveBlock:
    """The values alive in the body of the function that is the entry; `analyses` of its module have them, or get them."""
    if _LiveBlock not in analyses:
        index = BlockIndex.of(function.regions[0].blocks[0], analyses)
        analyses[_LiveBlock] = _LiveBlock(index, (), set(index.operations[-1].operands), analyses)
    body: _LiveBlock = analyses[_LiveBlock]
    return body


def _donated(function: ir.Operation, results: Sequence[ir.Value]) -> float:
    """Bytes of the results that take the buffers of arguments."""
    return sum((tensor_bytes(results[number]) for number in donated_results(function)), 0.0)


def donated_results(function: ir.Operation) -> set[int]:
    """The numbers of the results that take the buffers of arguments: those that `tf.aliasing_output` names; for arguments with
    `jax.buffer_donor`, the first remaining result of the same type."""
    arguments, results = list(function.regions[0].blocks[0].arguments), _returned(function)
    donors = []
    donated: set[int] = set()
    for argument, entry in zip(arguments, entries(function, "arg_attrs"), strict=True):
        if ALIASED in entry:
            donated.add(int(ir.IntegerAttr(entry[ALIASED]).value))
        elif DONOR in entry:
            donors.append(argument)
    available: dict[ir.Type, list[int]] = {}
    for number in reversed(range(len(results))):
        if number not in donated:
            available.setdefault(results[number].type, []).append(number)
    return donated | {available[donor.type].pop() for donor in donors if available.get(donor.type)}


class _Peak(NamedTuple):
    """The most bytes alive at one time in a block."""

    needed: float
    position: int
    "The number of the operation that runs then."
    inside: _LiveBlock | None
    "The region of that operation that needs most memory."


class _LiveBlock(Recomputable):
    """The values alive in one block, in addition to those of enclosing blocks.

    `owned` are outer values whose buffers this block may overwrite; `caller_owned` are values whose buffer the caller provides.
    """

    def __init__(self, index: BlockIndex, owned: Iterable[int], caller_owned: set[int], analyses: Analyses) -> None:
        self.index = index
        self.analyses = analyses
        self.owned = tuple(owned)
        self.caller_owned = caller_owned
        self.last: dict[int, int] = {}
        fusion = Fusion(index)
        self.operations, self.sources, self.tensor_bytes = index.operations, fusion.sources, index.values.tensor_bytes
        for position, block_op in enumerate(self.operations):
            self.last.update(dict.fromkeys(block_op.read, position))
        self.moved: dict[int, int] = {}
        "For values that fused readers read at other positions than they write, the last position of such a read."
        in_place = {value for block_op in self.operations if block_op.name in _IN_PLACE for value in block_op.results}
        for value in reversed(self.sources):
            last_read = self.last.get(value, 0)
            last_moved_read = self.moved.get(value, 0) if value in in_place else last_read
            for source in self.sources[value]:
                self.last[source] = max(self.last.get(source, 0), last_read)
                self.moved[source] = max(self.moved.get(source, 0), last_moved_read)
        self.alive: dict[int, float] = {}
        "The bytes that a value adds to the block: 0 for outer values."

    def peak(self) -> float:
        """The most bytes alive at one time."""
        return self._peak.needed

    @cached_property
    def _peak(self) -> _Peak:
        most = _Peak(0.0, 0, None)
        for position, (block_op, alive_bytes) in enumerate(self._walk()):
            inner = max(self._inner(block_op), key=_LiveBlock.peak, default=None)
            needed = alive_bytes + (inner.peak() if inner is not None else 0.0)
            if needed > most.needed:
                most = _Peak(needed, position, inner)
        return most

    def at_peak(self) -> dict[int, float]:
        """The values alive at the peak, with their bytes."""
        _, position, inside = self._peak
        next(islice(self._walk(), position, None), None)
        return self.alive | (inside.at_peak() if inside is not None else {})

    def _walk(self) -> Iterator[tuple[BlockOp, float]]:
        """Each operation with the bytes alive while it runs, those of `alive`."""
        self.alive = dict.fromkeys(self.owned, 0.0)
        dying: dict[int, list[int]] = {}
        for value, position in self.last.items():
            dying.setdefault(position, []).append(value)
        alive_bytes = 0.0
        for position, block_op in enumerate(self.operations):
            dead = dying.get(position, [])
            free = [value for value in dead if value in self.alive and self.moved.get(value, -1) < position]
            buffered = [result for result in block_op.results if result not in self.sources and result not in self.caller_owned]
            for result in buffered:
                size = self.tensor_bytes(result)
                places = self._places(block_op, result, free) if free else ()
                reused = next((value for value in places if self.tensor_bytes(value) == size), None)
                if reused is not None:
                    free.remove(reused)
                    self.alive[result] = self.alive.pop(reused)
                else:
                    self.alive[result] = size
                    alive_bytes += size
            yield block_op, alive_bytes
            for value in (*dead, *(result for result in buffered if result not in self.last)):
                alive_bytes -= self.alive.pop(value, 0.0)

    def _places(self, block_op: BlockOp, result: int, free: Sequence[int]) -> Sequence[int]:
        """The `free` values whose buffers `result` of an operation can take: an elementwise op can overwrite any."""
        if has(block_op.name, Trait.ELEMENTWISE):
            return free
        if not has(block_op.name, Trait.IN_PLACE):
            return ()
        own = block_op.operands[block_op.results.index(result)]
        while own in self.sources and has(self.operations[self.index.makers[own]].name, Trait.ALIASING):
            (own,) = self.sources[own]
        return [value for value in free if value == own]

    def _inner(self, block_op: BlockOp) -> list[_LiveBlock]:
        """The regions of a loop or branch, which need memory in addition to the carried values."""
        inner_blocks = []
        for block in (region.blocks[0] for region in block_op.op.regions) if block_op.name in REGION_OPS else ():
            index = BlockIndex.of(block, self.analyses)
            caller_owned = set() if block_op.name == "stablehlo.while" else set(index.operations[-1].operands)
            owned = map(index.values.__getitem__, block.arguments)
            inner_blocks.append(_LiveBlock(index, owned, caller_owned, self.analyses))
        return inner_blocks
