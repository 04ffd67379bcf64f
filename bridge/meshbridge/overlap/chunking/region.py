"""Segments that can be computed in chunks: from collectives whose results products read to collectives of products' results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce

from meshbridge.collectives.rewriter import resize_uniform
from meshbridge.dialect.ops import AllGatherOp, AllToAllOp, CollectiveOpView
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ancestor_in, ir
from meshbridge.ir.uses import defining_op
from meshbridge.ops.einsum import DOT, LoopDivision, is_divided
from meshbridge.ops.rule import Interface, signature
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.chunking.axis import ChunkAxis, ChunkedOp, chunk_op, op_on_chunk

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


def readers(value: ir.Value, block: ir.Block) -> Iterator[ir.Operation]:
    """The operations of a block that read `value`, or contain an operation that does."""
    for use in value.uses:
        op = use.owner.operation
        reader = op if op.block == block else ancestor_in(block, op)
        if reader is not None:
            yield reader


class _MissingBeginnings(Exception):
    """Raised if the segment needs further initial collectives."""

    def __init__(self, beginnings: Mapping[ir.Operation, ChunkedOp]) -> None:
        self.beginnings = beginnings


@dataclass
class Segments:
    """Finds the segments of one block."""

    block: ir.Block
    pieces: int
    interface: Interface = field(default_factory=Interface)

    def __post_init__(self) -> None:
        self.operations = [view.operation for view in self.block.operations]
        self.numbers = {op: number for number, op in enumerate(self.operations)}

    def of(self, op: ir.Operation, least: int) -> Iterator[Segment]:
        """The segments from a collective on, one per dimension; chunks of the two minor dimensions have at least `least`
        elements."""
        value, shape = op.operands[0], shape_of(op.operands[0])
        if is_divided(value):
            return
        for dim, size in enumerate(shape):
            if size % self.pieces or size < self.pieces or (dim >= len(shape) - 2 and size // self.pieces < least):
                continue
            carried = chunk_op(self.interface, op, value, ChunkAxis(dim), self.pieces)
            if carried is not None and not carried.summed and (segment := self._grown({op: carried})) is not None:
                yield segment

    def _grown(self, beginnings: dict[ir.Operation, ChunkedOp]) -> Segment | None:
        while len(beginnings) <= _BEGINNINGS:
            try:
                return _SegmentGrowth(self, beginnings).segment()
            except _MissingBeginnings as more:
                beginnings = {**beginnings, **more.beginnings}
        return None


@dataclass
class _SegmentGrowth:
    """A segment under construction, in program order."""

    of: Segments
    beginnings: Mapping[ir.Operation, ChunkedOp]
    carried: dict[ir.Operation, ChunkedOp] = field(default_factory=dict)
    chunk_axes: dict[ir.Value, ChunkAxis] = field(default_factory=dict)
    "The axis of the results."
    reached: set[int] = field(default_factory=set)
    "The numbers of operations that read chunked values."
    end: int = 0
    "The maximum of these and of the initial collectives."
    closed: bool = False
    "True if the axis ends at a collective along the axes of an initial one: of activations, not weights."
    depending: set[int] = field(default_factory=set)
    "The numbers of operations outside of the segment that depend on it."

    def segment(self) -> Segment | None:
        """The segment; None if it has no product along the axis, no final collective, or is too long."""
        starts = [self.of.numbers[op] for op in self.beginnings]
        number, self.end = min(starts), max(starts)
        longest = number + _LONGEST
        while number <= self.end:
            if number > longest:
                return None
            self._look_at(number)
            number += 1
        if not self.closed or not any(op.name == DOT and not carried.summed for op, carried in self.carried.items()):
            return None
        if any(self._joins_large(value) for value in self.chunk_axes):
            return None
        return Segment(tuple(self.carried.items()), self.of.pieces)

    def _look_at(self, number: int) -> None:
        op = self.of.operations[number]
        is_free = number not in self.depending
        if is_free and number not in self.reached and op in self.beginnings:
            self._take_in(op, self.beginnings[op])
        elif is_free and number in self.reached and (carried := self._carry(op)) is not None:
            self._take_in(op, carried)
        elif not is_free or number in self.reached:
            for result in op.results:
                self.depending |= self._readers(result)

    def _take_in(self, op: ir.Operation, carried: ChunkedOp) -> None:
        self.carried[op] = carried
        closes = op.name in _CLOSING and op not in self.beginnings and not self._is_small(op)
        self.closed |= closes and any(_axes(op) == _axes(beginning) for beginning in self.beginnings)
        for result, axis in zip(op.results, carried.results, strict=True):
            if axis is None or closes:
                self.depending |= self._readers(result)
            else:
                self.chunk_axes[result] = axis
                reading = self._readers(result)
                self.reached |= reading
                self.end = max(self.end, *reading, 0)

    def _joins_large(self, value: ir.Value) -> bool:
        """True if `value` is large and would have to be concatenated for a reader outside."""
        return _SMALL * tensor_bytes(value) > self._least and any(
            self.of.operations[number] not in self.carried for number in self._readers(value)
        )

    def _readers(self, value: ir.Value) -> set[int]:
        return {self.of.numbers[op] for op in readers(value, self.of.block)}

    def _carry(self, op: ir.Operation) -> ChunkedOp | None:
        """How `op` works on chunks of its operands; None if the axis ends there."""
        if op.name == AllGatherOp.OPERATION_NAME and not self._is_small(op):
            return None
        known = [(value, self.chunk_axes[value]) for value in op.operands if value in self.chunk_axes]
        if not known:
            return None  # an inner operation reads the chunked value
        carried = chunk_op(self.of.interface, op, *known[0], self.of.pieces)
        if carried is None:
            return None
        needed = list(zip(op.operands, carried.operands, strict=True))
        if any(value in self.chunk_axes and self.chunk_axes[value] != axis for value, axis in needed):
            return None
        for value, axis in needed:
            if value not in self.chunk_axes and axis is not None and (missing := self._beginnings(value, axis)):
                raise _MissingBeginnings(missing)
        return carried

    def _is_small(self, op: ir.Operation) -> bool:
        return _SMALL * _bytes(op) <= self._least

    @cached_property
    def _least(self) -> float:
        return min(map(_bytes, self.beginnings))

    def _beginnings(self, value: ir.Value, axis: ChunkAxis) -> dict[ir.Operation, ChunkedOp]:
        """Further initial collectives from which `value` is computed along the axis."""
        beginnings: dict[ir.Operation, ChunkedOp] = {}
        worklist, visited = [(value, axis)], set[ir.Value]()
        while worklist:
            value, axis = worklist.pop()
            op = defining_op(value)
            if value in visited or op is None or op.block != self.of.block:
                continue
            visited.add(value)
            if len(visited) > _TRACED:
                return {}
            carried = chunk_op(self.of.interface, op, value, axis, self.of.pieces)
            if carried is None:
                continue
            if op.name in OPENING | _CLOSING and not self._is_small(op):
                if op.name in OPENING and op not in self.beginnings and not is_divided(op.operands[0]):
                    beginnings[op] = carried
                continue
            worklist += [
                (operand, along) for operand, along in zip(op.operands, carried.operands, strict=True) if along is not None
            ]
        return beginnings


def _axes(op: ir.Operation) -> tuple[int, ...]:
    return CollectiveOpView(op).mesh_axes


def _bytes(op: ir.Operation) -> float:
    return max(map(tensor_bytes, (*op.operands, *op.results)))
