"""Gives every device its window of a split dimension: neighbours' blocks by permutes, the rest from its own shard.

Usually this is a halo exchange: shards of operand and result have equal lengths, so that every device reads its own shard and the
same few elements of its neighbours, and concatenates the blocks. In any other case a device writes each block into a buffer, at
offsets computed from its number.

Only elements that a device reads are sent. Two split dimensions are exchanged one after the other, so corners take two hops.
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
from meshbridge.ops.affine_access import AffineAccess, CoveredAccess, DeviceWindow
from meshbridge.ops.permute_rounds import PermuteRound, permute_rounds
from meshbridge.ops.spmd import SpmdProgram


def read_window(
    value: ir.Value, dim: int, axes: Axes, access: AffineAccess | CoveredAccess, fill: ir.Value | None, at: SpmdProgram
) -> ir.Value:
    """This device's window of dimension `dim` of a tensor, whose shard along `axes` is `value`.

    Positions outside of the global tensor read as the scalar `fill`; None if none is read.
    """
    count = at.mesh.group_size(axes)
    window = access.window(count)
    site = _ExchangeSite(dim, axes, count, shape_of(value)[dim], access.source, window, at)
    return site.halo(value, fill) if window.is_halo(site.shard) else site.assembled(value, fill)


def slice_window(value: ir.Value, dim: int, axes: Axes, access: AffineAccess, fill: ir.Value, at: SpmdProgram) -> ir.Value:
    """The same for a tensor that is replicated along `dim`."""
    count = at.mesh.group_size(axes)
    window = access.window(count)
    size, starts = shape_of(value)[dim], window.starts(members(count))
    low, high = max(0, -int(starts.values.min())), max(0, int(starts.values.max()) + window.length - size)
    widened = at.builder.pad_along(value, dim, fill, low, high)
    return at.builder.dynamic_slice(widened, dim, device_entry(starts + low, axes, at), window.length)


@dataclass(frozen=True)
class PaddedWindow:
    """The operand of a local op with windows: a tensor, with the padding and dilation of the dimension that give the windows'
    positions."""

    value: ir.Value
    low: int = 0
    high: int = 0
    dilation: int = 1


def read_padded_window(
    value: ir.Value, dim: int, axes: Axes, access: AffineAccess, fill: ir.Value, at: SpmdProgram
) -> PaddedWindow:
    """The positions under this device's windows, with `fill` where there is no element; padding may be negative."""
    count = at.mesh.group_size(axes)
    window, span = access.window(count), access.span(count)
    if not window.length:
        shape = shape_of(value)
        return PaddedWindow(at.builder.broadcast(fill, (*shape[:dim], span, *shape[dim + 1 :])))
    elements = read_window(value, dim, axes, access, fill, at)
    if window.lead is not None:
        spread = (window.length - 1) * access.dilation + 1
        return PaddedWindow(elements, window.lead, span - window.lead - spread, access.dilation)
    widened = at.builder.pad_along(elements, dim, fill, 0, access.dilation - 1, access.dilation - 1)
    widened = at.builder.pad_along(widened, dim, fill, 0, max(0, span + access.dilation - 1 - shape_of(widened)[dim]))
    return PaddedWindow(at.builder.dynamic_slice(widened, dim, device_entry(window.leads(members(count)), axes, at), span))


def device_entry(numbers: PerDevice, axes: Axes, at: SpmdProgram) -> ir.Value:
    """This device's entry of the numbers of a group along `axes`: tensor<i32>."""
    listed = numbers.values
    return entry(at.builder, numbers, at.group_index(axes)) if np.diff(listed).any() else at.builder.scalar(int(listed[0]))


@dataclass(frozen=True)
class _ExchangeSite:
    """One exchange: `count` devices along `axes` hold `shard` elements each of a dimension of `size`."""

    dim: int
    axes: Axes
    count: int
    shard: int
    size: int
    window: DeviceWindow
    at: SpmdProgram

    def halo(self, value: ir.Value, fill: ir.Value | None) -> ir.Value:
        """Concatenates blocks of the shards by distance, from the lowest."""
        builder, window, shard = self.at.builder, self.window, self.shard
        start = int(window.starts(members(1)).values[0])
        by_distance = {
            int(permute.senders[0] - permute.receivers[0]): permute for permute in self._permute_rounds() if permute.moves
        }
        is_even = self.count * shard == self.size
        pieces = []
        for distance in range(start // shard, (start + window.length - 1) // shard + 1):
            low, high = max(start - distance * shard, 0), min(start + window.length - distance * shard, shard)
            if fill is not None and distance and distance not in by_distance:  # outside of the tensor on every device
                shape = shape_of(value)
                pieces.append(builder.broadcast(fill, (*shape[: self.dim], high - low, *shape[self.dim + 1 :])))
                continue
            piece = self._from(value, low, high, distance, by_distance.get(distance))
            if distance and fill is not None and is_even:
                piece = self._keep_inside(piece, distance, fill)
            pieces.append(piece)
        elements = builder.concatenate(pieces, self.dim)
        return elements if fill is None or is_even else self._masked(elements, fill)

    def assembled(self, value: ir.Value, fill: ir.Value | None) -> ir.Value:
        """Writes blocks into a buffer, which is longer than the window if a block has unneeded elements. A device that receives
        none in a round writes its own elements back."""
        builder, dim, permutes = self.at.builder, self.dim, self._permute_rounds()
        ranges = [(permute.put.values[permute.receivers], permute.width) for permute in permutes]
        low = max((-int(put.min()) for put, _ in ranges), default=0)
        high = max((int(put.max()) + width for put, width in ranges), default=0) - self.window.length
        low, high = max(low, 0), max(high, 0)
        shape = shape_of(value)
        shape[dim] = low + self.window.length + high
        buffer = builder.splat(tensor(shape, element_of(value)), 0)
        for permute in permutes:
            piece = self._cut(value, permute)
            if permute.moves:
                piece = self._permuted(piece, permute)
            fills = permute.width == shape[dim]  # no slice needed: a chain of selections is one kernel
            offset = None if fills else device_entry(permute.put + low, self.axes, self.at)
            if len(permute.receivers) < self.count:
                own_elements = buffer if offset is None else builder.dynamic_slice(buffer, dim, offset, permute.width)
                flag = device_entry(permute.receives, self.axes, self.at)
                piece = builder.select(builder.compare("EQ", flag, 1), piece, own_elements)
            buffer = piece if offset is None else builder.dynamic_update(buffer, piece, dim, offset)
        window = builder.slice(buffer, dim, low, self.window.length)
        starts = self.window.starts(members(self.count)).values
        outside = bool(starts.min() < 0 or starts.max() + self.window.length > self.size)
        return self._masked(window, fill) if outside and fill is not None else window

    def _permute_rounds(self) -> tuple[PermuteRound, ...]:
        return permute_rounds(self.size, self.count, self.window)

    def _cut(self, value: ir.Value, permute: PermuteRound) -> ir.Value:
        """The block that this device sends, or keeps."""
        builder, starts = self.at.builder, permute.taken.values[permute.senders]
        if (starts == starts[0]).all():
            return builder.slice(value, self.dim, int(starts[0]), permute.width)
        return builder.dynamic_slice(value, self.dim, device_entry(permute.taken, self.axes, self.at), permute.width)

    def _from(self, value: ir.Value, low: int, high: int, distance: int, permute: PermuteRound | None) -> ir.Value:
        """The elements from `low` to `high` of the shard `distance` further along; undefined if there is none."""
        if distance and permute is not None and len(self.axes) == 1 and len(permute.receivers) == self.count - abs(distance):
            return self.at.shifted((value, self.dim, low, high - low), self.axes[0], distance)
        piece = self.at.builder.slice(value, self.dim, low, high - low)
        return piece if not distance or permute is None else self._permuted(piece, permute)

    def _permuted(self, piece: ir.Value, permute: PermuteRound) -> ir.Value:
        mesh, builder, digits, groups = self.at.mesh, self.at.builder, axis_digits(self.at.mesh, self.axes), Groups()
        if not groups.lists(mesh) and (offset := permute.offset):
            return shift(builder, piece, mesh, digits, offset, groups, Positions())
        steps = np.stack([permute.senders, permute.receivers], axis=1)
        return builder.value("collective_permute", piece.type, [piece], groups.permute(mesh, digits, steps))

    def _keep_inside(self, piece: ir.Value, distance: int, fill: ir.Value) -> ir.Value:
        """`fill` on devices that have no neighbour at that distance."""
        edge, direction = (-distance, "GE") if distance < 0 else (self.count - distance, "LT")
        return self.at.builder.select(self.at.builder.compare(direction, self.at.group_index(self.axes), edge), piece, fill)

    def _masked(self, elements: ir.Value, fill: ir.Value) -> ir.Value:
        """`fill` at positions outside of the tensor."""
        start = device_entry(self.window.starts(members(self.count)), self.axes, self.at)
        inside = self.at.builder.within(self.at.builder.count_from(start, self.window.length), self.size)
        return self.at.builder.select_along(self.dim, inside, elements, fill)
