"""Rewrites a value on one block of a dimension by slicing its producers.

block(select(compare(iota along rows, iota along columns), dot_general(q, all_gather k), splat))
  =   select(compare(iota along rows, iota + start), dot_general(q, the shard of k that is here), splat)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op
from meshbridge.ops.dimensions import REDUCE, SLICE, operand_dims

_SLICED = ("start_indices", "limit_indices", "strides")

Place = tuple[ir.Value, int]
"""A value, and the dimension along which blocks of it are computed."""


@dataclass
class BlockTrace:
    """What blocks of some values are computed of, in the block of operations `home`."""

    home: ir.Block
    whole: frozenset[ir.Operation]
    "Gathers whose results are held."
    until: ir.Operation | None = None
    "Behind which no blocks are there: what is read there, but for a reduction of blocks, is held."
    moving: dict[tuple[ir.Operation, int], frozenset[ir.Operation]] = field(default_factory=dict)
    "By operations and the dimension of their results along which blocks are computed, the gathers for which blocks move."
    read: set[ir.Value] = field(default_factory=set)
    "What is held, and read in part or whole."

    _sources: dict[Place, list[Place]] = field(default_factory=dict)
    "By what has been reached, that of which its blocks are computed."
    _found: dict[Place, frozenset[ir.Operation]] = field(default_factory=dict)

    def reach(self, value: ir.Value, dim: int) -> frozenset[ir.Operation]:
        """The gathers for which blocks of `value` along `dim` need blocks to move."""
        waiting = [(value, dim)]
        while waiting:  # what is read comes first; unrolled layers are deeper than Python's stack
            place = waiting[-1]
            if place not in self._sources:
                self._sources[place] = self._read_of(*place)
                waiting += [each for each in reversed(self._sources[place]) if each not in self._sources]
            elif waiting.pop() not in self._found:
                self._settle(*place)
        return self._found[value, dim]

    def moves(self, value: ir.Value, dim: int) -> bool:
        """Whether blocks of `value` along `dim` have been reached, and need blocks to move."""
        return bool(self._found.get((value, dim)))

    def _read_of(self, value: ir.Value, dim: int) -> list[Place]:
        """What a block is computed of, block by block; what is read otherwise is noted."""
        op = producer(value, self.home)
        if op is not None and self._moves(op, dim):
            return []
        along = None if op is None or self._outlives(value) else operand_dims(op, dim)
        if op is None or along is None:
            self.read.add(value)
            return []
        sides = list(zip(op.operands, along, strict=bool(along)))
        self.read.update(operand for operand, each in sides if each is None)
        return [(operand, each) for operand, each in sides if each is not None]

    def _moves(self, op: ir.Operation, dim: int) -> bool:
        return op.name == AllGatherOp.OPERATION_NAME and op not in self.whole and AllGatherOp(op).gather_axis == dim

    def _outlives(self, value: ir.Value) -> bool:
        """Whether something reads all of a value where no blocks are there any more."""
        until = self.until
        if until is None:
            return False
        users = (use.owner.operation for use in value.uses)
        return any(each.block == self.home and each.name != REDUCE and until.is_before_in_block(each) for each in users)

    def _settle(self, value: ir.Value, dim: int) -> None:
        found = frozenset[ir.Operation]().union(*(self._found[each] for each in self._sources[value, dim]))
        op = producer(value, self.home)
        if op is not None and self._moves(op, dim):
            found = frozenset([op])
        if op is not None and found:
            self.moving[op, dim] = found
        self._found[value, dim] = found


def producer(value: ir.Value, home: ir.Block) -> ir.Operation | None:
    """The operation of the block `home` that gives `value`."""
    op = defining_op(value)
    return op if op is not None and op.block == home else None


@dataclass(frozen=True)
class BlockWriter:
    """Writes the block of `size` entries from `start` on of any value."""

    emit: Builder
    home: ir.Block
    start: ir.Value | int
    size: int
    given: Mapping[tuple[ir.Value, int], ir.Value]
    "BlockWriter that are there, by the value and the dimension."
    _made: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def knowing(self, given: Mapping[tuple[ir.Value, int], ir.Value]) -> BlockWriter:
        """The same block, of which more is there."""
        return replace(self, given={**self.given, **given})

    def of(self, value: ir.Value, dim: int) -> ir.Value:
        """The block of `value` along `dim`."""
        key = (value, dim)
        if key in self.given:
            return self.given[key]
        if key not in self._made:
            self._made[key] = self._make(value, dim)
        return self._made[key]

    def whole(self, value: ir.Value) -> ir.Value:
        """What a block reads of `value` that no dimension of the block runs along: all of it."""
        return value

    def _make(self, value: ir.Value, dim: int) -> ir.Value:
        op = producer(value, self.home)
        along = None if op is None else operand_dims(op, dim)
        if op is None or along is None:
            return self._cut(value, dim)
        shape = shape_of(value)
        shape[dim] = self.size
        type_ = tensor(shape, element_of(value))
        if not along:
            return self._known(op, type_, dim)
        sides = zip(op.operands, along, strict=True)
        operands = [self.whole(operand) if each is None else self.of(operand, each) for operand, each in sides]
        if op.name == SLICE:
            starts, limits, strides = (list(integers(op.attributes[each])) for each in _SLICED)
            limits[dim] = self.size
            return self.emit.cut(operands[0], starts, limits, strides)
        if op.name == REDUCE:
            combiner = op.regions[0].blocks[0].operations[0].operation.name.removeprefix("stablehlo.")
            at = Builder(op.location, self.emit.ip)
            return at.reduce(operands[0], operands[1], list(integers(op.attributes["dimensions"])), combiner)
        return self.emit.again(op, type_, operands)

    def _known(self, op: ir.Operation, type_: ir.RankedTensorType, dim: int) -> ir.Value:
        """Of an iota or of one number."""
        found = known(op.results[0])
        if isinstance(found, Splat):
            return self.emit.constant(type_, ir.DenseElementsAttr.get_splat(type_, found.element))
        counted = self.emit.again(op, type_, [])
        if ir.IntegerAttr(op.attributes["iota_dimension"]).value != dim:
            return counted
        if isinstance(self.start, int):
            return self.emit.add(counted, self.start)
        return self.emit.add(counted, self.emit.convert(self.start, type_.element_type))

    def _cut(self, value: ir.Value, dim: int) -> ir.Value:
        if isinstance(self.start, int):
            return self.emit.slice(value, dim, self.start, self.size)
        return self.emit.dynamic_slice(value, dim, self.start, self.size)
