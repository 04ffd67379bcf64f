"""Segments that can be computed in chunks: from collectives whose results products read to collectives of products' results."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain

from meshbridge.collectives.rewriter import resize_uniform
from meshbridge.dialect.ops import AllGatherOp, AllToAllOp, CollectiveOpView
from meshbridge.ir.block_index import BlockIndex, BlockOp
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.ops.einsum import DOT, LoopDivision, is_divided
from meshbridge.ops.rule import signature
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.chunking.axis import ChunkAxis, ChunkedOp, ChunkedOps, op_on_chunk

OPENING = frozenset((AllGatherOp.OPERATION_NAME, AllToAllOp.OPERATION_NAME))
"""Collectives that products wait for."""
_CLOSING = (ops_with(Trait.REDUCING) & ops_with(Trait.GROUPED, dialect="mesh")) | {AllToAllOp.OPERATION_NAME}
"""Collectives that wait for products. The chunked axis ends at those that are not small."""
_SMALL = 8
"""The ratio to the smallest initial collective below which a collective, as for statistics, counts as small."""
_LONGEST = 512
"""The maximum number of operations from the first to the last of a segment, to bound the time."""
_TRACED = 64
"""The maximum number of values visited on the way back to initial collectives."""
_BEGINNINGS = 8
"""The maximum number of initial collectives of a segment."""


@dataclass(frozen=True)
class Segment:
    """Operations of one block, in program order, that can be computed in chunks."""

    steps: tuple[tuple[ir.Operation, ChunkedOp], ...]
    pieces: int

    @property
    def operations(self) -> tuple[ir.Operation, ...]:
        """The operations."""
        return tuple(op for op, _ in self.steps)

    @cached_property
    def results(self) -> dict[ir.Value, tuple[ir.Operation, ChunkedOp, int]]:
        """By result, its operation, the chunked axis of that, and the number of the result."""
        return {result: (op, carried, number) for op, carried in self.steps for number, result in enumerate(op.results)}

    @cached_property
    def incoming(self) -> tuple[ir.Value, ...]:
        """The operands from outside of the segment."""
        return tuple(dict.fromkeys(value for op in self.operations for value in op.operands if value not in self.results))

    @cached_property
    def outgoing(self) -> tuple[ir.Value, ...]:
        """The results with readers outside of the segment."""
        return tuple(value for value in self.results if any(not self._holds(use.owner.operation) for use in value.uses))

    def _holds(self, op: ir.Operation) -> bool:
        return len(op.results) > 0 and op.results[0] in self.results

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """Equal for segments that compute the same from other values."""
        numbers = {value: number for number, value in enumerate((*self.incoming, *self.results))}
        steps = [(signature(op), carried, *(numbers[value] for value in op.operands)) for op, carried in self.steps]
        return (self.pieces, *steps, *(numbers[value] for value in self.outgoing))

    def among(self, copies: Mapping[ir.Operation, ir.Operation]) -> Segment:
        """The same segment in a copy of the program."""
        return Segment(tuple((copies[op], carried) for op, carried in self.steps), self.pieces)

    def again(self, builder: Builder, values: Mapping[ir.Value, ir.Value]) -> Mapping[ir.Value, ir.Value]:
        """Copies the operations without chunks, with operands replaced by `values`; returns all values."""
        results = dict(values)
        for op in self.operations:
            copy = op.clone(ip=builder.ip)
            for number, value in enumerate(op.operands):
                copy.operands[number] = results[value]
            results |= zip(op.results, copy.results, strict=True)
        return results

    def write(self, builder: Builder, replaced: Mapping[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
        """Writes the operations chunk by chunk, with incoming values `replaced`; returns the outgoing values."""
        parts: dict[ir.Value, list[ir.Value]] = {value: [] for value in self.outgoing}
        for number in range(self.pieces):
            chunk: dict[ir.Value, ir.Value] = {}
            slices: dict[tuple[ir.Value, ChunkAxis | None], ir.Value] = {}
            for op, carried in self.steps:
                at = Builder(op.location, builder.ip)
                for read in zip(op.operands, carried.operands, strict=True):
                    if read[0] not in chunk and read not in slices:
                        slices[read] = self._take(at, replaced.get(read[0], read[0]), read[1], number)
                operands = [
                    chunk[read[0]] if read[0] in chunk else slices[read]
                    for read in zip(op.operands, carried.operands, strict=True)
                ]
                chunk |= zip(op.results, op_on_chunk(at, op, operands, carried, self.pieces).results, strict=True)
            for value, chunks in parts.items():
                chunks.append(chunk[value])
        return {value: self._join(builder.ip, chunks, *self.results[value]) for value, chunks in parts.items()}

    def _take(self, builder: Builder, value: ir.Value, axis: ChunkAxis | None, number: int) -> ir.Value:
        if axis is None:
            return value
        smaller = resize_uniform(value, axis.dim, divide=self.pieces)
        return smaller(builder) if smaller else LoopDivision(self.pieces, axis.outer).take(builder, value, axis.dim, number)

    def _join(self, ip: ir.InsertionPoint, parts: list[ir.Value], op: ir.Operation, carried: ChunkedOp, number: int) -> ir.Value:
        builder = Builder(op.location, ip)
        axis = carried.results[number]
        if axis is None:
            return reduce(lambda total, chunk: builder.elementwise(COMBINERS[carried.summed], total, chunk), parts)
        return LoopDivision(self.pieces, axis.outer).join(builder, parts, axis.dim)


Beginnings = Mapping[int, ChunkedOp]
"""Initial collectives, by the numbers of the operations in their block."""


class _MissingBeginnings(Exception):
    """Raised if the segment needs further initial collectives."""

    def __init__(self, beginnings: Beginnings) -> None:
        self.beginnings = beginnings


class Segments:
    """Finds the segments of one block."""

    def __init__(self, index: BlockIndex, pieces: int) -> None:
        self.pieces = pieces
        self.index = index
        self.values = index.values
        self.chunking = ChunkedOps(index.values, pieces)
        self.opened: dict[tuple[int, ChunkAxis, float], Beginnings] = {}
        "Initial collectives by the value that is computed from them, its axis, and the bytes of those that are not small."
        self._grown: dict[frozenset[tuple[int, ChunkedOp]], Segment | None] = {}

    def openings(self) -> list[int]:
        """The numbers of the collectives at which segments can start. A segment has an initial and a final collective along the
        same axes, and both are near: most gathers of weights are near no reduction along their axes, and need no look."""
        initial, final = self._numbers_by_axes(OPENING), self._numbers_by_axes(_CLOSING)
        numbers = sorted(chain.from_iterable(initial.values()))
        possible: set[int] = set()
        for axes, closings in final.items():
            for first, last in _nearest_pairs(initial.get(axes, []), closings):
                if last - first <= _LONGEST:
                    possible.update(numbers[bisect_left(numbers, last - _LONGEST) : bisect_right(numbers, first + _LONGEST)])
        return sorted(possible)

    def _numbers_by_axes(self, names: Container[str]) -> dict[tuple[int, ...], list[int]]:
        """The numbers of the collectives of these names, in program order, by their axes."""
        by_axes: dict[tuple[int, ...], list[int]] = {}
        for number, block_op in enumerate(self.index.operations):
            if block_op.name in names:
                by_axes.setdefault(_axes(block_op.op), []).append(number)
        return by_axes

    def of(self, number: int, least: int) -> Iterator[Segment]:
        """The segments from the collective of that number on, one per dimension; chunks of the two minor dimensions have at least
        `least` elements."""
        block_op = self.index.operations[number]
        value, shape = block_op.operands[0], shape_of(self.values.all[block_op.operands[0]])
        if is_divided(self.values.all[value]):
            return
        for dim, size in enumerate(shape):
            if size % self.pieces or size < self.pieces or (dim >= len(shape) - 2 and size // self.pieces < least):
                continue
            carried = self.chunking.chunked(block_op, value, ChunkAxis(dim))
            if carried is not None and not carried.summed and (segment := self._segment({number: carried})) is not None:
                yield segment

    def _segment(self, beginnings: Beginnings) -> Segment | None:
        """The segment that starts at these collectives, and at others that it needs."""
        while len(beginnings) <= _BEGINNINGS:
            try:
                return self._growth(beginnings)
            except _MissingBeginnings as more:
                beginnings = {**beginnings, **more.beginnings}
        return None

    def _growth(self, beginnings: Beginnings) -> Segment | None:
        key = frozenset(beginnings.items())
        if key not in self._grown:
            self._grown[key] = _SegmentGrowth(self, beginnings).segment()
        return self._grown[key]


class _SegmentGrowth:
    """A segment under construction, in program order."""

    def __init__(self, of: Segments, beginnings: Beginnings) -> None:
        self.of = of
        self.index = of.index
        self.beginnings = beginnings
        self.carried: dict[int, ChunkedOp] = {}
        self.chunk_axes: dict[int, ChunkAxis] = {}
        "The axis of the results."
        self.reached: set[int] = set()
        "The numbers of operations that read chunked values."
        self.end = 0
        "The maximum of these and of the initial collectives."
        self.closed = False
        "True if the axis ends at a collective along the axes of an initial one: of activations, not weights."
        self.depending: set[int] = set()
        "The numbers of operations outside of the segment that depend on it."
        self._least = min(self._bytes(self.index.operations[number]) for number in beginnings)
        self._axes = {_axes(self.index.operations[number].op) for number in beginnings}

    def segment(self) -> Segment | None:
        """The segment; None if it has no product along the axis, no final collective, or is too long."""
        number, self.end = min(self.beginnings), max(self.beginnings)
        longest = number + _LONGEST
        while number <= self.end:
            if number > longest:
                return None
            self._look_at(number)
            number += 1
        operations = self.index.operations
        if not self.closed:
            return None
        if not any(operations[number].name == DOT and not carried.summed for number, carried in self.carried.items()):
            return None
        if any(self._joins_large(value) for value in self.chunk_axes):
            return None
        return Segment(tuple((operations[number].op, carried) for number, carried in self.carried.items()), self.of.pieces)

    def _look_at(self, number: int) -> None:
        is_free, is_reached = number not in self.depending, number in self.reached
        if not is_reached and is_free and number not in self.beginnings:
            return
        block_op = self.index.operations[number]
        carried = None
        if is_free:
            carried = self._carry(block_op) if is_reached else self.beginnings[number]
        if carried is not None:
            self._take_in(number, block_op, carried)
        else:
            for result in block_op.results:
                self.depending.update(self.index.readers_of(result))

    def _take_in(self, number: int, block_op: BlockOp, carried: ChunkedOp) -> None:
        self.carried[number] = carried
        closes = block_op.name in _CLOSING and number not in self.beginnings and not self._is_small(block_op)
        self.closed |= closes and _axes(block_op.op) in self._axes
        for result, axis in zip(block_op.results, carried.results, strict=True):
            reading = self.index.readers_of(result)
            if axis is None or closes:
                self.depending.update(reading)
            else:
                self.chunk_axes[result] = axis
                self.reached.update(reading)
                self.end = max(self.end, *reading[-1:])

    def _joins_large(self, value: int) -> bool:
        """True if `value` is large and would have to be concatenated for a reader outside."""
        return _SMALL * self.of.values.tensor_bytes(value) > self._least and any(
            number not in self.carried for number in self.index.readers_of(value)
        )

    def _carry(self, block_op: BlockOp) -> ChunkedOp | None:
        """How an operation works on chunks of its operands; None if the axis ends there."""
        if block_op.name == AllGatherOp.OPERATION_NAME and not self._is_small(block_op):
            return None
        known = next((value for value in block_op.operands if value in self.chunk_axes), None)
        if known is None:
            return None  # an inner operation reads the chunked value
        carried = self.of.chunking.chunked(block_op, known, self.chunk_axes[known])
        if carried is None:
            return None
        needed = list(zip(block_op.operands, carried.operands, strict=True))
        if any(value in self.chunk_axes and self.chunk_axes[value] != axis for value, axis in needed):
            return None
        for value, axis in needed:
            if value not in self.chunk_axes and axis is not None and (missing := self._beginnings(value, axis)):
                raise _MissingBeginnings(missing)
        return carried

    def _is_small(self, block_op: BlockOp) -> bool:
        return _SMALL * self._bytes(block_op) <= self._least

    def _bytes(self, block_op: BlockOp) -> float:
        return max(map(self.of.values.tensor_bytes, (*block_op.operands, *block_op.results)))

    def _beginnings(self, value: int, axis: ChunkAxis) -> Beginnings:
        """Further initial collectives from which `value` is computed along the axis."""
        key = value, axis, self._least
        opened = self.of.opened.get(key)
        if opened is None:
            opened = self.of.opened[key] = self._opened(value, axis)
        return {number: carried for number, carried in opened.items() if number not in self.beginnings}

    def _opened(self, value: int, axis: ChunkAxis) -> Beginnings:
        """Initial collectives from which `value` is computed along the axis."""
        opened: dict[int, ChunkedOp] = {}
        worklist, visited = [(value, axis)], set[int]()
        while worklist:
            value, axis = worklist.pop()
            number = self.index.makers.get(value)
            if value in visited or number is None:
                continue
            visited.add(value)
            if len(visited) > _TRACED:
                return {}
            block_op = self.index.operations[number]
            carried = self.of.chunking.chunked(block_op, value, axis)
            if carried is None:
                continue
            if block_op.name in OPENING | _CLOSING and not self._is_small(block_op):
                if block_op.name in OPENING and not is_divided(self.of.values.all[block_op.operands[0]]):
                    opened[number] = carried
                continue
            worklist += [
                (operand, along) for operand, along in zip(block_op.operands, carried.operands, strict=True) if along is not None
            ]
        return opened


def _nearest_pairs(numbers: Sequence[int], others: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Each of `others` with the nearest of the sorted `numbers` before it, and with the nearest after it."""
    for other in others:
        before, after = bisect_left(numbers, other) - 1, bisect_right(numbers, other)
        if before >= 0:
            yield numbers[before], other
        if after < len(numbers):
            yield other, numbers[after]


def _axes(op: ir.Operation) -> tuple[int, ...]:
    return CollectiveOpView(op).mesh_axes
