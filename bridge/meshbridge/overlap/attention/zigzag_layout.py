"""The zigzag layout of a sequence: of 2n half blocks, device i has numbers i and 2n - 1 - i, so that a causal mask hides
equally many scores from every device."""

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
from meshbridge.overlap.attention.block_trace import BlockWriter, Place, producer

_POSITIONAL = ops_with(Trait.ELEMENTWISE, Trait.SHAPING, Trait.CONSTANT) | {"stablehlo.iota"}
"""What positions are computed by."""


@dataclass
class QueryRows:
    """What rows of some values are computed of: one for each query."""

    home: ir.Block
    mesh: str
    axis: int
    "Along which devices share the queries."
    inside: Collection[ir.Value]
    "What depends on keys, and is computed row by row."
    ends: Collection[ir.Value] = ()
    "What is looked at by itself."
    sources: dict[Place, None] = field(default_factory=dict)
    "What holds something for each query, and is read whole for any key."
    _seen: set[tuple[ir.Value, int, int | None]] = field(default_factory=set)

    def reach(self, value: ir.Value, row: int, column: int | None) -> bool:
        """Whether rows of `value` can be computed of rows: its dimension `row` runs over queries, and `column` over keys, if one
        does."""
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
        return all(self._shares(operand) if each is None else self.reach(operand, each, key) for operand, each, key in sides)

    def _shares(self, value: ir.Value) -> bool:
        """Whether any device can compute `value`, which has nothing for each query, as another one has it."""
        return _is_positional(value, self.home, self.axis) or is_replicated_within(value, self.home, self.mesh, self.axis)


def _is_positional(value: ir.Value, home: ir.Block, axis: int) -> bool:
    """Whether `value` is computed of the positions of its elements, and of the device's number along an axis of the mesh."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        op = producer(value, home)
        if op is None:
            return False
        if value in seen or _is_device_number(op, axis):
            continue
        if op.name not in _POSITIONAL:
            return False
        seen.add(value)
        waiting += op.operands
    return True


def _is_device_number(op: ir.Operation, axis: int) -> bool:
    """Whether `op` is the slice, of one number, of all numbers along an axis of the mesh."""
    if op.name != AllSliceOp.OPERATION_NAME or shape_of(op.results[0]) != [1]:
        return False
    operand = op.operands[0]
    counted = defining_name(operand) == "stablehlo.iota"
    return counted and list(AllSliceOp(op).mesh_axes) == [axis]


@dataclass(frozen=True)
class _RowBlockWriter(BlockWriter):
    """Rows that another device had, as that device computes them."""

    axis: int = 0
    "Along which devices share the rows."
    device: ir.Value | None = None
    "The number of that device."
    _elsewhere: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def whole(self, value: ir.Value) -> ir.Value:
        """The numbers that positions are computed of are those of the other device."""
        if value not in self._elsewhere:
            self._elsewhere[value] = self._there(value)
        return self._elsewhere[value]

    def _there(self, value: ir.Value) -> ir.Value:
        op = producer(value, self.home)
        if op is None or not _is_positional(value, self.home, self.axis):
            return value
        if _is_device_number(op, self.axis):
            assert self.device is not None
            return self.emit.convert(self.emit.reshape(self.device, [1]), element_of(value))
        operands = [self.whole(operand) for operand in op.operands]
        return value if operands == list(op.operands) else self.emit.again(op, value.type, operands)


@dataclass(frozen=True)
class Half:
    """A half of some device's queries or keys: its number among all halves, and what there is of it."""

    number: ir.Value
    parts: tuple[ir.Value, ...]


Pairs = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Halves:
    """Deals halves of `size` elements, and returns what was found for them."""

    def __init__(self, emit: Builder, mesh: Mesh, axis: int, size: int) -> None:
        self.emit, self.mesh, self.axis, self.size = emit, mesh, axis, size
        self.count = mesh.shape[axis]
        index = build.all_slice(emit.iota([self.count], 0), mesh, mesh_axes=[axis], slice_axis=0, at=emit)
        self.device = emit.reshape(index, [])
        self._even = emit.compare("EQ", emit.elementwise("remainder", self.device, 2), 0)

    def dealt(self, places: Sequence[Place]) -> tuple[Half, Half]:
        """The halves that this device has instead of those of its own shards: the earlier and the later one."""
        emit = self.emit
        first, last = [], []
        for value, dim in places:
            pieces = (emit.slice(value, dim, half * self.size, self.size) for half in (0, 1))
            came = [self._permuted(piece, self._owners(half)) for half, piece in enumerate(pieces)]
            first.append(emit.select(self._even, *came))
            last.append(emit.select(self._even, *came[::-1]))
        return Half(self.device, tuple(first)), Half(self._mirrored(self.device), tuple(last))

    def returned(self, early: ir.Value, late: ir.Value, dim: int) -> ir.Value:
        """Of what was found for the halves that this device has, what belongs to its own shard."""
        emit = self.emit
        sent = (emit.select(self._even, early, late), emit.select(self._even, late, early))
        owners = (self._owners(half) for half in (0, 1))
        return emit.concatenate([self._permuted(each, to[:, ::-1]) for each, to in zip(sent, owners, strict=True)], dim)

    def kept(self, keeper: ir.Value, shards: Sequence[ir.Value], dims: Sequence[int]) -> tuple[Half, Half]:
        """Those that a device keeps, whose shards are both one after the other."""
        first, last = (
            tuple(self.emit.slice(shard, dim, at * self.size, self.size) for shard, dim in zip(shards, dims, strict=True))
            for at in (0, 1)
        )
        return Half(keeper, first), Half(self._mirrored(keeper), last)

    def chosen(self, condition: ir.Value, first: Half, last: Half) -> Half:
        """One of two."""
        select = self.emit.select
        parts = (select(condition, *each) for each in zip(first.parts, last.parts, strict=True))
        return Half(select(condition, first.number, last.number), tuple(parts))

    def rows(self, home: ir.Block, sources: Sequence[Place], queries: Half) -> BlockWriter:
        """Writes for half of the queries what is computed of the `sources`, for as many keys as before."""
        emit = self.emit
        start = emit.multiply(emit.elementwise("remainder", queries.number, 2), self.size)
        given = dict(zip(sources, queries.parts, strict=True))
        device = emit.elementwise("divide", queries.number, 2)
        return _RowBlockWriter(emit, home, start, self.size, given, axis=self.axis, device=device)

    def start(self, keys: Half) -> ir.Value:
        """Where keys begin among all."""
        return self.emit.multiply(keys.number, self.size)

    def _mirrored(self, number: ir.Value) -> ir.Value:
        return self.emit.subtract(self.emit.splat(number.type, 2 * self.count - 1), number)

    def _owners(self, half: int) -> Pairs:
        """Each device, and the one that gets the half of that number of its shard."""
        devices = np.arange(self.count)
        number = 2 * devices + half
        return np.stack([devices, np.minimum(number, 2 * self.count - 1 - number)], axis=1)

    def _permuted(self, value: ir.Value, pairs: Pairs) -> ir.Value:
        if (pairs[:, 0] == pairs[:, 1]).all():  # the first halves of two devices
            return value
        attrs = Groups().moves(self.mesh, axis_digits(self.mesh, (self.axis,)), pairs)
        return self.emit.value("collective_permute", value.type, [value], attrs)
