"""Regions that can be computed in chunks of rows: from the collectives whose results products read to those that send what
products give."""

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
from meshbridge.overlap.chunking.axis import Carried, Rows, carry, on_piece

OPENING = frozenset((AllGatherOp.OPERATION_NAME, AllToAllOp.OPERATION_NAME))
"""Collectives that products wait for."""
_CLOSING = (ops_with(Trait.REDUCING) & ops_with(Trait.GROUPED, dialect="mesh")) | {AllToAllOp.OPERATION_NAME}
"""Collectives that wait for products. Rows end behind those that are not small."""
_SMALL = 8
"""How many times fewer bytes than the smallest collective that a segment begins with small ones have, as those of statistics."""
_LONGEST = 512
"""Operations between the first and the last of a segment: more would take time in proportion to the program for each segment."""
_TRACED = 64
"""Values that are looked at on the way back to the collectives that a value stems from."""
_BEGINNINGS = 8
"""Collectives that a segment begins with at the most."""


@dataclass(frozen=True)
class Segment:
    """Operations of one block, in program order, that work on any piece of their rows as on all of them."""

    steps: tuple[tuple[ir.Operation, Carried], ...]
    pieces: int

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """The operations."""
        return tuple(op for op, _ in self.steps)

    @cached_property
    def results(self) -> dict[ir.Value, tuple[ir.Operation, Carried, int]]:
        """What the operations give, by which one of them and as which of its results."""
        return {result: (op, carried, number) for op, carried in self.steps for number, result in enumerate(op.results)}

    @cached_property
    def incoming(self) -> tuple[ir.Value, ...]:
        """The values that are computed elsewhere."""
        return tuple(dict.fromkeys(value for op in self.ops for value in op.operands if value not in self.results))

    @cached_property
    def outgoing(self) -> tuple[ir.Value, ...]:
        """The results that are read elsewhere."""
        return tuple(value for value in self.results if any(not self._holds(use.owner.operation) for use in value.uses))

    def _holds(self, op: ir.Operation) -> bool:
        return len(op.results) > 0 and op.results[0] in self.results

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """The same for segments that compute the same of other values."""
        numbers = {value: number for number, value in enumerate((*self.incoming, *self.results))}
        steps = [(signature(op), carried, *(numbers[value] for value in op.operands)) for op, carried in self.steps]
        return (self.pieces, *steps, *(numbers[value] for value in self.outgoing))

    def among(self, copies: Mapping[ir.Operation, ir.Operation]) -> Segment:
        """The same segment of a copy of the program."""
        return Segment(tuple((copies[op], carried) for op, carried in self.steps), self.pieces)

    def again(self, emit: Builder, given: Mapping[ir.Value, ir.Value]) -> Mapping[ir.Value, ir.Value]:
        """Writes them as they are, of what is `given` for incoming values; what any value becomes."""
        made = dict(given)
        for op in self.ops:
            copy = op.clone(ip=emit.ip)
            for number, value in enumerate(op.operands):
                copy.operands[number] = made[value]
            made |= zip(op.results, copy.results, strict=True)
        return made

    def write(self, emit: Builder, given: Mapping[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
        """Writes them piece by piece, of what is `given` for incoming values; what outgoing ones become."""
        parts: dict[ir.Value, list[ir.Value]] = {value: [] for value in self.outgoing}
        for number in range(self.pieces):
            made: dict[ir.Value, ir.Value] = {}
            taken: dict[tuple[ir.Value, Rows | None], ir.Value] = {}
            for op, carried in self.steps:
                at = Builder(op.location, emit.ip)
                for each in zip(op.operands, carried.operands, strict=True):
                    if each[0] not in made and each not in taken:
                        taken[each] = self._take(at, given.get(each[0], each[0]), each[1], number)
                operands = [
                    made[each[0]] if each[0] in made else taken[each] for each in zip(op.operands, carried.operands, strict=True)
                ]
                made |= zip(op.results, on_piece(at, op, operands, carried, self.pieces).results, strict=True)
            for value, found in parts.items():
                found.append(made[value])
        return {value: self._join(emit.ip, found, *self.results[value]) for value, found in parts.items()}

    def _take(self, emit: Builder, value: ir.Value, rows: Rows | None, number: int) -> ir.Value:
        if rows is None:
            return value
        smaller = resize_uniform(value, rows.dim, divide=self.pieces)
        return smaller(emit) if smaller else LoopDivision(self.pieces, rows.outer).take(emit, value, rows.dim, number)

    def _join(self, ip: ir.InsertionPoint, parts: list[ir.Value], op: ir.Operation, carried: Carried, number: int) -> ir.Value:
        emit = Builder(op.location, ip)
        rows = carried.results[number]
        if rows is None:
            return reduce(lambda one, other: emit.elementwise(COMBINERS[carried.summed], one, other), parts)
        return LoopDivision(self.pieces, rows.outer).join(emit, parts, rows.dim)


def readers(value: ir.Value, block: ir.Block) -> Iterator[ir.Operation]:
    """The operations of a block that read `value`, or have something inside that does."""
    for use in value.uses:
        op = use.owner.operation
        reader = op if op.block == block else ancestor_in(block, op)
        if reader is not None:
            yield reader


class _More(Exception):
    """Another collective that the segment has to begin with."""

    def __init__(self, beginnings: Mapping[ir.Operation, Carried]) -> None:
        self.beginnings = beginnings


@dataclass
class Segments:
    """The segments of one block."""

    block: ir.Block
    pieces: int
    interface: Interface = field(default_factory=Interface)

    def __post_init__(self) -> None:
        self.ops = [view.operation for view in self.block.operations]
        self.numbers = {op: number for number, op in enumerate(self.ops)}

    def of(self, op: ir.Operation, least: int) -> Iterator[Segment]:
        """The segments that begin with a collective, for each dimension whose pieces have at least `least` elements, where it is
        one of the two minor ones."""
        value, shape = op.operands[0], shape_of(op.operands[0])
        if is_divided(value):
            return
        for dim, size in enumerate(shape):
            if size % self.pieces or size < self.pieces or (dim >= len(shape) - 2 and size // self.pieces < least):
                continue
            carried = carry(self.interface, op, value, Rows(dim), self.pieces)
            if carried is not None and not carried.summed and (found := self._grown({op: carried})) is not None:
                yield found

    def _grown(self, beginnings: dict[ir.Operation, Carried]) -> Segment | None:
        while len(beginnings) <= _BEGINNINGS:
            try:
                return _Growth(self, beginnings).segment()
            except _More as more:
                beginnings = {**beginnings, **more.beginnings}
        return None


@dataclass
class _Growth:
    """A segment while operations join it, in program order."""

    of: Segments
    beginnings: Mapping[ir.Operation, Carried]
    carried: dict[ir.Operation, Carried] = field(default_factory=dict)
    rows: dict[ir.Value, Rows] = field(default_factory=dict)
    "Of what the operations give."
    reached: set[int] = field(default_factory=set)
    "The numbers of operations that read rows."
    last: int = 0
    "The largest one of them, and of the beginnings."
    closed: bool = False
    "Whether rows end behind a collective along the axes of one that the segment begins with: not weights, but activations."
    depending: set[int] = field(default_factory=set)
    "The numbers of operations that depend on what the segment gives, and are not in it."

    def segment(self) -> Segment | None:
        """The segment; None where no product works on its rows, no collective ends them, or it is too long."""
        starts = [self.of.numbers[op] for op in self.beginnings]
        number, self.last = min(starts), max(starts)
        longest = number + _LONGEST
        while number <= self.last:
            if number > longest:
                return None
            self._look_at(number)
            number += 1
        if not self.closed or not any(op.name == DOT and not carried.summed for op, carried in self.carried.items()):
            return None
        if any(self._joins_large(value) for value in self.rows):
            return None
        return Segment(tuple(self.carried.items()), self.of.pieces)

    def _look_at(self, number: int) -> None:
        op = self.of.ops[number]
        is_free = number not in self.depending
        if is_free and number not in self.reached and op in self.beginnings:
            self._take_in(op, self.beginnings[op])
        elif is_free and number in self.reached and (carried := self._carry(op)) is not None:
            self._take_in(op, carried)
        elif not is_free or number in self.reached:
            for result in op.results:
                self.depending |= self._readers(result)

    def _take_in(self, op: ir.Operation, carried: Carried) -> None:
        self.carried[op] = carried
        closes = op.name in _CLOSING and op not in self.beginnings and not self._is_small(op)
        self.closed |= closes and any(_axes(op) == _axes(each) for each in self.beginnings)
        for result, rows in zip(op.results, carried.results, strict=True):
            if rows is None or closes:
                self.depending |= self._readers(result)
            else:
                self.rows[result] = rows
                found = self._readers(result)
                self.reached |= found
                self.last = max(self.last, *found, 0)

    def _joins_large(self, value: ir.Value) -> bool:
        """Whether `value` is large and read elsewhere, for which it would be joined."""
        return _SMALL * tensor_bytes(value) > self._least and any(
            self.of.ops[number] not in self.carried for number in self._readers(value)
        )

    def _readers(self, value: ir.Value) -> set[int]:
        return {self.of.numbers[op] for op in readers(value, self.of.block)}

    def _carry(self, op: ir.Operation) -> Carried | None:
        """How `op` works on the rows of its operands, if it does; None where it ends them."""
        if op.name == AllGatherOp.OPERATION_NAME and not self._is_small(op):
            return None
        known = [(value, self.rows[value]) for value in op.operands if value in self.rows]
        if not known:
            return None  # what reads rows is inside of it
        carried = carry(self.of.interface, op, *known[0], self.of.pieces)
        if carried is None:
            return None
        needed = list(zip(op.operands, carried.operands, strict=True))
        if any(value in self.rows and self.rows[value] != rows for value, rows in needed):
            return None
        for value, rows in needed:
            if value not in self.rows and rows is not None and (more := self._beginnings(value, rows)):
                raise _More(more)
        return carried

    def _is_small(self, op: ir.Operation) -> bool:
        return _SMALL * _bytes(op) <= self._least

    @cached_property
    def _least(self) -> float:
        return min(map(_bytes, self.beginnings))

    def _beginnings(self, value: ir.Value, rows: Rows) -> dict[ir.Operation, Carried]:
        """The other collectives that `value` stems from, if it does so by operations on rows alone."""
        found: dict[ir.Operation, Carried] = {}
        waiting, seen = [(value, rows)], set[ir.Value]()
        while waiting:
            value, rows = waiting.pop()
            op = defining_op(value)
            if value in seen or op is None or op.block != self.of.block:
                continue
            seen.add(value)
            if len(seen) > _TRACED:
                return {}
            carried = carry(self.of.interface, op, value, rows, self.of.pieces)
            if carried is None:
                continue
            if op.name in OPENING | _CLOSING and not self._is_small(op):
                if op.name in OPENING and op not in self.beginnings and not is_divided(op.operands[0]):
                    found[op] = carried
                continue
            waiting += [(each, along) for each, along in zip(op.operands, carried.operands, strict=True) if along is not None]
        return found


def _axes(op: ir.Operation) -> tuple[int, ...]:
    return CollectiveOpView(op).mesh_axes


def _bytes(op: ir.Operation) -> float:
    return max(map(tensor_bytes, (*op.operands, *op.results)))
