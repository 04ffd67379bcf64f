"""The zigzag layout of a sequence: of 2n half blocks, device i has numbers i and 2n - 1 - i, so that a causal mask hides equally
many scores from every device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshbridge.dialect import build
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.digits import axis_digits
from meshbridge.ir.groups import Groups
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.ir.uses import defining_name
from meshbridge.ops.dimensions import operand_dims
from meshbridge.ops.replication import is_replicated_within
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.attention.block_trace import BlockWriter, ValueDim, producer

_POSITIONAL = ops_with(Trait.ELEMENTWISE, Trait.SHAPING, Trait.CONSTANT) | {"stablehlo.iota"}
"""Operations that compute positions."""


@dataclass
class QueryRows:
    """Traces the values from which rows of some values, one per query, are computed."""

    home: ir.Block
    mesh: str
    axis: int
    "The mesh axis along which queries are sharded."
    inside: Collection[ir.Value]
    "Values that depend on keys, and are computed row by row."
    ends: Collection[ir.Value] = ()
    "Values that are traced separately."
    sources: dict[ValueDim, None] = field(default_factory=dict)
    "Values with one element per query, which are read whole for any key."
    _seen: set[tuple[ir.Value, int, int | None]] = field(default_factory=set)

    def trace(self, value: ir.Value, row: int, column: int | None) -> bool:
        """True if rows of `value` can be computed from rows: dimension `row` is queries, and `column` keys, if given."""
        if value in self.ends or (value, row, column) in self._seen:
            return True
        self._seen.add((value, row, column))
        op = producer(value, self.home)
        if value not in self.inside:
            if _is_positional(value, self.home, self.axis):
                return True
            if column is None:
                self.sources[value, row] = None
                return True
        along = None if op is None else operand_dims(op, row)
        keys = None if op is None else (None,) * len(op.operands) if column is None else operand_dims(op, column)
        if op is None or along is None or keys is None:
            return False
        sides = zip(op.operands, along, keys, strict=bool(along) and bool(keys))
        return all(
            self._shares(operand) if operand_dim is None else self.trace(operand, operand_dim, key)
            for operand, operand_dim, key in sides
        )

    def _shares(self, value: ir.Value) -> bool:
        """True if any device can compute `value`, which has no dimension of queries, for another device."""
        return _is_positional(value, self.home, self.axis) or is_replicated_within(value, self.home, self.mesh, self.axis)


def _is_positional(value: ir.Value, home: ir.Block, axis: int) -> bool:
    """True if `value` is computed from positions of elements and the device's number along a mesh axis."""
    worklist, visited = [value], set[ir.Value]()
    while worklist:
        value = worklist.pop()
        op = producer(value, home)
        if op is None:
            return False
        if value in visited or _is_device_number(op, axis):
            continue
        if op.name not in _POSITIONAL:
            return False
        visited.add(value)
        worklist += op.operands
    return True


def _is_device_number(op: ir.Operation, axis: int) -> bool:
    """True if `op` is the all-slice that gives the device's number along a mesh axis."""
    if op.name != AllSliceOp.OPERATION_NAME or shape_of(op.results[0]) != [1]:
        return False
    operand = op.operands[0]
    counted = defining_name(operand) == "stablehlo.iota"
    return counted and list(AllSliceOp(op).mesh_axes) == [axis]


@dataclass(frozen=True)
class _RowBlockWriter(BlockWriter):
    """Computes rows of another device."""

    axis: int = 0
    "The mesh axis along which rows are sharded."
    device: ir.Value | None = None
    "The number of that device."
    _elsewhere: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def whole(self, value: ir.Value) -> ir.Value:
        """Replaces the device number in positions by the other device's."""
        if value not in self._elsewhere:
            self._elsewhere[value] = self._there(value)
        return self._elsewhere[value]

    def _there(self, value: ir.Value) -> ir.Value:
        op = producer(value, self.home)
        if op is None or not _is_positional(value, self.home, self.axis):
            return value
        if _is_device_number(op, self.axis):
            assert self.device is not None
            return self.builder.convert(self.builder.reshape(self.device, [1]), element_of(value))
        operands = [self.whole(operand) for operand in op.operands]
        return value if operands == list(op.operands) else self.builder.again(op, value.type, operands)


@dataclass(frozen=True)
class Half:
    """A half of some device's queries or keys: its number among all halves, and the values."""

    number: ir.Value
    parts: tuple[ir.Value, ...]


Pairs = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class ZigzagExchange:
    """Exchanges halves of `size` elements, and returns results to their devices."""

    def __init__(self, builder: Builder, mesh: Mesh, axis: int, size: int) -> None:
        self.builder, self.mesh, self.axis, self.size = builder, mesh, axis, size
        self.count = mesh.shape[axis]
        self.device = build.group_index(mesh, mesh_axes=[axis], at=builder)
        self._even = builder.compare("EQ", builder.elementwise("remainder", self.device, 2), 0)

    def exchanged(self, value_dims: Sequence[ValueDim]) -> tuple[Half, Half]:
        """The halves of this device in the zigzag layout: the earlier and the later one."""
        builder = self.builder
        early, late = [], []
        for value, dim in value_dims:
            pieces = (builder.slice(value, dim, half * self.size, self.size) for half in (0, 1))
            came = [self._permuted(piece, self._owners(half)) for half, piece in enumerate(pieces)]
            early.append(builder.select(self._even, *came))
            late.append(builder.select(self._even, *came[::-1]))
        return Half(self.device, tuple(early)), Half(self._mirrored(self.device), tuple(late))

    def sent_back(self, early: ir.Value, late: ir.Value, dim: int) -> ir.Value:
        """This device's own shard of results for the halves of the zigzag layout."""
        builder = self.builder
        outgoing = (builder.select(self._even, early, late), builder.select(self._even, late, early))
        owners = (self._owners(half) for half in (0, 1))
        return builder.concatenate([self._permuted(half, to[:, ::-1]) for half, to in zip(outgoing, owners, strict=True)], dim)

    def halves_of(self, keeper: ir.Value, shards: Sequence[ir.Value], dims: Sequence[int]) -> tuple[Half, Half]:
        """The two halves of a device, whose shards contain them one after the other."""
        early, late = (
            tuple(self.builder.slice(shard, dim, at * self.size, self.size) for shard, dim in zip(shards, dims, strict=True))
            for at in (0, 1)
        )
        return Half(keeper, early), Half(self._mirrored(keeper), late)

    def select(self, condition: ir.Value, early: Half, late: Half) -> Half:
        """Selects one of two halves."""
        select = self.builder.select
        parts = (select(condition, *pair) for pair in zip(early.parts, late.parts, strict=True))
        return Half(select(condition, early.number, late.number), tuple(parts))

    def rows(self, home: ir.Block, sources: Sequence[ValueDim], queries: Half) -> BlockWriter:
        """A writer of the rows for half of the queries, given the `sources`."""
        builder = self.builder
        start = builder.multiply(builder.elementwise("remainder", queries.number, 2), self.size)
        blocks_at = dict(zip(sources, queries.parts, strict=True))
        device = builder.elementwise("divide", queries.number, 2)
        return _RowBlockWriter(builder, home, start, self.size, blocks_at, axis=self.axis, device=device)

    def start(self, keys: Half) -> ir.Value:
        """The position of the first key."""
        return self.builder.multiply(keys.number, self.size)

    def _mirrored(self, number: ir.Value) -> ir.Value:
        return self.builder.subtract(self.builder.splat(number.type, 2 * self.count - 1), number)

    def _owners(self, half: int) -> Pairs:
        """Each device, and the one that receives half number `half` of its shard."""
        devices = np.arange(self.count)
        number = 2 * devices + half
        return np.stack([devices, np.minimum(number, 2 * self.count - 1 - number)], axis=1)

    def _permuted(self, value: ir.Value, pairs: Pairs) -> ir.Value:
        if (pairs[:, 0] == pairs[:, 1]).all():  # the first halves of two devices
            return value
        attrs = Groups().permute(self.mesh, axis_digits(self.mesh, (self.axis,)), pairs)
        return self.builder.value("collective_permute", value.type, [value], attrs)
