"""Gives every device its window of a split dimension: neighbours' pieces by permutes, the rest from its own shard.

The usual case is a halo: shards of operand and result are equally long, so that every device reads its own shard and the same
few elements of its neighbours. Then the pieces are put one after the other. In any other case a device writes each piece where it
belongs in a buffer, at offsets that it computes from its number.

Only the elements that somebody reads move. Two split dimensions are exchanged one after the other, so corners go over two edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshbridge.ir.builder import element_of, shape_of, tensor
from meshbridge.ir.digits import axis_digits
from meshbridge.ir.groups import Groups
from meshbridge.ir.mlir import ir
from meshbridge.ir.per_device import PerDevice, entry, members
from meshbridge.ir.positions import Positions
from meshbridge.ir.sharding import Axes
from meshbridge.ir.shifts import shift
from meshbridge.ops.reach import Covered, Reach, Window
from meshbridge.ops.rounds import SendRound, rounds
from meshbridge.ops.spmd import SpmdProgram


def read_window(
    value: ir.Value, dim: int, axes: Axes, reach: Reach | Covered, fill: ir.Value | None, at: SpmdProgram
) -> ir.Value:
    """This device's window of dimension `dim` of a tensor, of which `value` is the shard along `axes`.

    What is outside of the global tensor reads as the scalar `fill`; None if it is not read.
    """
    count = at.mesh.group_size(axes)
    window = reach.window(count)
    site = _ExchangeSite(dim, axes, count, shape_of(value)[dim], reach.source, window, at)
    return site.halo(value, fill) if window.is_halo(site.shard) else site.assembled(value, fill)


def cut_window(value: ir.Value, dim: int, axes: Axes, reach: Reach, fill: ir.Value, at: SpmdProgram) -> ir.Value:
    """The same of a tensor that is replicated along `dim`."""
    count = at.mesh.group_size(axes)
    window = reach.window(count)
    size, starts = shape_of(value)[dim], window.starts(members(count))
    low, high = max(0, -int(starts.values.min())), max(0, int(starts.values.max()) + window.length - size)
    widened = at.emit.pad_along(value, dim, fill, low, high)
    return at.emit.dynamic_slice(widened, dim, own_entry(starts + low, axes, at), window.length)


@dataclass(frozen=True)
class Places:
    """What a local op with windows reads: a tensor, and the padding and dilation of the dimension that make it the places which
    the windows cover."""

    value: ir.Value
    low: int = 0
    high: int = 0
    dilation: int = 1


def read_places(value: ir.Value, dim: int, axes: Axes, reach: Reach, fill: ir.Value, at: SpmdProgram) -> Places:
    """The places that this device's windows cover, `fill` where no element stands; padding may be negative."""
    count = at.mesh.group_size(axes)
    window, span = reach.window(count), reach.span(count)
    if not window.length:
        shape = shape_of(value)
        return Places(at.emit.broadcast(fill, (*shape[:dim], span, *shape[dim + 1 :])))
    found = read_window(value, dim, axes, reach, fill, at)
    if window.lead is not None:
        spread = (window.length - 1) * reach.dilation + 1
        return Places(found, window.lead, span - window.lead - spread, reach.dilation)
    widened = at.emit.pad_along(found, dim, fill, 0, reach.dilation - 1, reach.dilation - 1)
    widened = at.emit.pad_along(widened, dim, fill, 0, max(0, span + reach.dilation - 1 - shape_of(widened)[dim]))
    return Places(at.emit.dynamic_slice(widened, dim, own_entry(window.leads(members(count)), axes, at), span))


def own_entry(numbers: PerDevice, axes: Axes, at: SpmdProgram) -> ir.Value:
    """This device's one of the numbers of a group along `axes`: tensor<i32>."""
    listed = numbers.values
    return entry(at.emit, numbers, at.group_index(axes)) if np.diff(listed).any() else at.emit.scalar(int(listed[0]))


@dataclass(frozen=True)
class _ExchangeSite:
    """One exchange: `count` devices along `axes` hold `shard` elements each of a dimension of `size`."""

    dim: int
    axes: Axes
    count: int
    shard: int
    size: int
    window: Window
    at: SpmdProgram

    def halo(self, value: ir.Value, fill: ir.Value | None) -> ir.Value:
        """Pieces of the shards in order of their distance, the nearest before first."""
        emit, window, shard = self.at.emit, self.window, self.shard
        start = int(window.starts(members(1)).values[0])
        moving = {int(each.senders[0] - each.receivers[0]): each for each in self._rounds() if each.moves}
        is_even = self.count * shard == self.size
        pieces = []
        for distance in range(start // shard, (start + window.length - 1) // shard + 1):
            low, high = max(start - distance * shard, 0), min(start + window.length - distance * shard, shard)
            if fill is not None and distance and distance not in moving:  # outside of the tensor everywhere
                shape = shape_of(value)
                pieces.append(emit.broadcast(fill, (*shape[: self.dim], high - low, *shape[self.dim + 1 :])))
                continue
            piece = self._from(value, low, high, distance, moving.get(distance))
            if distance and fill is not None and is_even:
                piece = self._keep_inside(piece, distance, fill)
            pieces.append(piece)
        found = emit.concatenate(pieces, self.dim)
        return found if fill is None or is_even else self._masked(found, fill)

    def assembled(self, value: ir.Value, fill: ir.Value | None) -> ir.Value:
        """Pieces written into a buffer, which is longer than the window where a piece is longer than what is read of it. Who gets
        none in a round writes back what it has."""
        emit, dim, found = self.at.emit, self.dim, self._rounds()
        places = [(each.put.values[each.receivers], each.width) for each in found]
        low = max((-int(put.min()) for put, _ in places), default=0)
        high = max((int(put.max()) + width for put, width in places), default=0) - self.window.length
        low, high = max(low, 0), max(high, 0)
        shape = shape_of(value)
        shape[dim] = low + self.window.length + high
        buffer = emit.splat(tensor(shape, element_of(value)), 0)
        for each in found:
            piece = self._cut(value, each)
            if each.moves:
                piece = self._permuted(piece, each)
            fills = each.width == shape[dim]  # then there is nothing to slice: a chain of selections is one kernel
            own = None if fills else own_entry(each.put + low, self.axes, self.at)
            if len(each.receivers) < self.count:
                kept = buffer if own is None else emit.dynamic_slice(buffer, dim, own, each.width)
                flag = own_entry(each.receives, self.axes, self.at)
                piece = emit.select(emit.compare("EQ", flag, 1), piece, kept)
            buffer = piece if own is None else emit.dynamic_update(buffer, piece, dim, own)
        window = emit.slice(buffer, dim, low, self.window.length)
        starts = self.window.starts(members(self.count)).values
        outside = bool(starts.min() < 0 or starts.max() + self.window.length > self.size)
        return self._masked(window, fill) if outside and fill is not None else window

    def _rounds(self) -> tuple[SendRound, ...]:
        return rounds(self.size, self.count, self.window)

    def _cut(self, value: ir.Value, each: SendRound) -> ir.Value:
        """The piece that this device sends, or keeps."""
        emit, taken = self.at.emit, each.taken.values[each.senders]
        if (taken == taken[0]).all():
            return emit.slice(value, self.dim, int(taken[0]), each.width)
        return emit.dynamic_slice(value, self.dim, own_entry(each.taken, self.axes, self.at), each.width)

    def _from(self, value: ir.Value, low: int, high: int, distance: int, each: SendRound | None) -> ir.Value:
        """The elements from `low` to `high` of the shard `distance` further along; anything where there is none."""
        if distance and each is not None and len(self.axes) == 1 and len(each.receivers) == self.count - abs(distance):
            return self.at.shifted((value, self.dim, low, high - low), self.axes[0], distance)
        piece = self.at.emit.slice(value, self.dim, low, high - low)
        return piece if not distance or each is None else self._permuted(piece, each)

    def _permuted(self, piece: ir.Value, each: SendRound) -> ir.Value:
        mesh, emit, digits, groups = self.at.mesh, self.at.emit, axis_digits(self.at.mesh, self.axes), Groups()
        if not groups.lists(mesh) and (offset := each.offset):
            return shift(emit, piece, mesh, digits, offset, groups, Positions())
        steps = np.stack([each.senders, each.receivers], axis=1)
        return emit.value("collective_permute", piece.type, [piece], groups.moves(mesh, digits, steps))

    def _keep_inside(self, piece: ir.Value, distance: int, fill: ir.Value) -> ir.Value:
        """`fill` on devices that have no neighbour at that distance."""
        edge, direction = (-distance, "GE") if distance < 0 else (self.count - distance, "LT")
        return self.at.emit.select(self.at.emit.compare(direction, self.at.group_index(self.axes), edge), piece, fill)

    def _masked(self, found: ir.Value, fill: ir.Value) -> ir.Value:
        """`fill` wherever the window is outside of the tensor."""
        start = own_entry(self.window.starts(members(self.count)), self.axes, self.at)
        inside = self.at.emit.within(self.at.emit.count_from(start, self.window.length), self.size)
        return self.at.emit.select_along(self.dim, inside, found, fill)
