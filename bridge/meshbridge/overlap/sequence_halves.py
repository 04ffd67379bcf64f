"""A sequence in halves, dealt so that a causal mask hides as much from all devices: number i has half i and half 2n - 1 - i."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshbridge.dialect import build
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.digits import axis_digits
from meshbridge.ir.groups import Groups
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.overlap.key_blocks import BROADCAST, RESHAPE, TRANSPOSE, Blocks, Place, producer, read_along

_POSITIONAL = frozenset((*ELEMENTWISE, BROADCAST, RESHAPE, TRANSPOSE, "stablehlo.iota", "stablehlo.constant"))
"""What positions are computed by."""


@dataclass
class Rows:
    """What rows of some values are computed of: one for each query."""

    home: ir.Block
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
            if _is_positional(value, self.home):
                return True
            if column is None:
                self.sources[value, row] = None
                return True
        along = None if op is None else read_along(op, row)
        keys = None if op is None else (None,) * len(op.operands) if column is None else read_along(op, column)
        if op is None or along is None or keys is None:
            return False
        sides = zip(op.operands, along, keys, strict=bool(along) and bool(keys))
        return all(self.reach(operand, each, key) for operand, each, key in sides if each is not None)


def _is_positional(value: ir.Value, home: ir.Block) -> bool:
    """Whether `value` is computed of the positions of its elements, and of the device's."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        op = producer(value, home)
        if op is None:
            return False
        if value in seen or (op.name == AllSliceOp.OPERATION_NAME and shape_of(value) == [1]):
            continue
        if op.name not in _POSITIONAL:
            return False
        seen.add(value)
        waiting += op.operands
    return True


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

    def rows(self, home: ir.Block, sources: Sequence[Place], queries: Half) -> Blocks:
        """Writes for half of the queries what is computed of the `sources`, for as many keys as before."""
        shift = self.emit.subtract(queries.number, self.emit.multiply(self.device, 2))
        given = dict(zip(sources, queries.parts, strict=True))
        return Blocks(self.emit, home, self.emit.multiply(shift, self.size), self.size, given)

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
