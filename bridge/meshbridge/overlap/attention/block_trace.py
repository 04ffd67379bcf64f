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

ValueDim = tuple[ir.Value, int]
"""A value, and the dimension along which blocks of it are computed."""


@dataclass
class BlockTrace:
    """The values from which blocks of some values are computed, within the block of operations `home`."""

    home: ir.Block
    whole: frozenset[ir.Operation]
    "Gathers whose results are held."
    until: ir.Operation | None = None
    "The last operation that reads blocks: values with later readers, except reductions, are held."
    moving: dict[tuple[ir.Operation, int], frozenset[ir.Operation]] = field(default_factory=dict)
    "By operation and dimension of its result, the gathers whose shards its blocks need."
    read: set[ir.Value] = field(default_factory=set)
    "Held values that are read in part or whole."

    _sources: dict[ValueDim, list[ValueDim]] = field(default_factory=dict)
    "By traced value and dimension, the operands from which its blocks are computed."
    _found: dict[ValueDim, frozenset[ir.Operation]] = field(default_factory=dict)

    def trace(self, value: ir.Value, dim: int) -> frozenset[ir.Operation]:
        """The gathers whose shards blocks of `value` along `dim` need."""
        worklist = [(value, dim)]
        while worklist:  # operands come first; unrolled layers are deeper than Python's stack
            value_dim = worklist[-1]
            if value_dim not in self._sources:
                self._sources[value_dim] = self._read_of(*value_dim)
                worklist += [source for source in reversed(self._sources[value_dim]) if source not in self._sources]
            elif worklist.pop() not in self._found:
                self._record(*value_dim)
        return self._found[value, dim]

    def reads_gathers(self, value: ir.Value, dim: int) -> bool:
        """True if blocks of `value` along `dim` have been traced, and need shards of gathers."""
        return bool(self._found.get((value, dim)))

    def _read_of(self, value: ir.Value, dim: int) -> list[ValueDim]:
        """The operands from which a block is computed block by block; records the other operands."""
        op = producer(value, self.home)
        if op is not None and self._is_gathered(op, dim):
            return []
        along = None if op is None or self._outlives(value) else operand_dims(op, dim)
        if op is None or along is None:
            self.read.add(value)
            return []
        sides = list(zip(op.operands, along, strict=bool(along)))
        self.read.update(operand for operand, operand_dim in sides if operand_dim is None)
        return [(operand, operand_dim) for operand, operand_dim in sides if operand_dim is not None]

    def _is_gathered(self, op: ir.Operation, dim: int) -> bool:
        return op.name == AllGatherOp.OPERATION_NAME and op not in self.whole and AllGatherOp(op).gather_axis == dim

    def _outlives(self, value: ir.Value) -> bool:
        """True if a later operation reads the whole value."""
        until = self.until
        if until is None:
            return False
        users = (use.owner.operation for use in value.uses)
        return any(user.block == self.home and user.name != REDUCE and until.is_before_in_block(user) for user in users)

    def _record(self, value: ir.Value, dim: int) -> None:
        gathers = frozenset[ir.Operation]().union(*(self._found[source] for source in self._sources[value, dim]))
        op = producer(value, self.home)
        if op is not None and self._is_gathered(op, dim):
            gathers = frozenset([op])
        if op is not None and gathers:
            self.moving[op, dim] = gathers
        self._found[value, dim] = gathers


def producer(value: ir.Value, home: ir.Block) -> ir.Operation | None:
    """The operation of the block `home` that computes `value`."""
    op = defining_op(value)
    return op if op is not None and op.block == home else None


@dataclass(frozen=True)
class BlockWriter:
    """Writes the block of `size` entries from `start` on of any value."""

    builder: Builder
    home: ir.Block
    start: ir.Value | int
    size: int
    known_blocks: Mapping[tuple[ir.Value, int], ir.Value]
    "Existing blocks, by value and dimension."
    _made: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def knowing(self, known_blocks: Mapping[tuple[ir.Value, int], ir.Value]) -> BlockWriter:
        """The same writer with more existing blocks."""
        return replace(self, known_blocks={**self.known_blocks, **known_blocks})

    def of(self, value: ir.Value, dim: int) -> ir.Value:
        """The block of `value` along `dim`."""
        key = (value, dim)
        if key in self.known_blocks:
            return self.known_blocks[key]
        if key not in self._made:
            self._made[key] = self._make(value, dim)
        return self._made[key]

    def whole(self, value: ir.Value) -> ir.Value:
        """The value that a block reads of an operand without the block's dimension: all of it."""
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
        operands = [
            self.whole(operand) if operand_dim is None else self.of(operand, operand_dim) for operand, operand_dim in sides
        ]
        if op.name == SLICE:
            starts, limits, strides = (list(integers(op.attributes[operand_dim])) for operand_dim in _SLICED)
            limits[dim] = self.size
            return self.builder.cut(operands[0], starts, limits, strides)
        if op.name == REDUCE:
            combiner = op.regions[0].blocks[0].operations[0].operation.name.removeprefix("stablehlo.")
            at = Builder(op.location, self.builder.ip)
            return at.reduce(operands[0], operands[1], list(integers(op.attributes["dimensions"])), combiner)
        return self.builder.again(op, type_, operands)

    def _known(self, op: ir.Operation, type_: ir.RankedTensorType, dim: int) -> ir.Value:
        """The block of an iota or a splat."""
        constant = known(op.results[0])
        if isinstance(constant, Splat):
            return self.builder.constant(type_, ir.DenseElementsAttr.get_splat(type_, constant.element))
        counted = self.builder.again(op, type_, [])
        if ir.IntegerAttr(op.attributes["iota_dimension"]).value != dim:
            return counted
        if isinstance(self.start, int):
            return self.builder.add(counted, self.start)
        return self.builder.add(counted, self.builder.convert(self.start, type_.element_type))

    def _cut(self, value: ir.Value, dim: int) -> ir.Value:
        if isinstance(self.start, int):
            return self.builder.slice(value, dim, self.start, self.size)
        return self.builder.dynamic_slice(value, dim, self.start, self.size)
