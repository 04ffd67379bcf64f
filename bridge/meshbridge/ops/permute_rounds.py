"""Schedules the permutes that give every device its window of a split dimension: a few, however many devices.

Device j of a group holds the elements from `j*shard` on. The elements of it that device i reads are an *edge*. A permute takes
edges of which no two share a sender or a receiver, and sends as many elements for each as the longest has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import gcd, prod

import numpy as np

from meshbridge.ir.digits import Numbers
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.groups import lists_shifted
from meshbridge.ir.per_device import PerDevice, members
from meshbridge.ir.sharding import Axes, Mesh, local_shape
from meshbridge.ir.shifts import received
from meshbridge.ops.affine_access import AffineAccess, CoveredAccess, DeviceWindow, ShardSummaries
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import ShardingRule

MOST_SHIFTS = 4
"""Permutes by distance are chosen if there are at most this many more than the busiest device's edges need: edges of one distance
have nearly equal lengths, and form a shift along the mesh. Not measured: the bytes are the same."""

_FACTORS = 8
"""The number of edge numberings that are tried."""


@dataclass(frozen=True)
class WindowExchange:
    """`count` devices hold a dimension of `size` elements in shards, and each reads its window of it."""

    size: int
    count: int
    window: DeviceWindow

    @property
    def shard(self) -> int:
        """Elements of a shard."""
        return -(-self.size // self.count)

    def begin(self, receivers: PerDevice, senders: PerDevice) -> PerDevice:
        """The begin of a receiver's window, relative to a sender's shard."""
        return self.window.starts(receivers) - senders * self.shard

    def conditions(self, receivers: PerDevice, senders: PerDevice) -> list[PerDevice]:
        """Terms that are all positive exactly if the sender holds elements of the receiver's window."""
        begin, in_shard = self.begin(receivers, senders), senders * -self.shard + self.size
        in_range = [senders + 1, in_shard, self.window.starts(receivers) * -1 + self.size]
        return [*in_range, begin * -1 + self.shard, begin + self.window.length]

    def first_sender(self, receivers: PerDevice) -> PerDevice:
        """The first device that holds elements of each window."""
        return self.window.starts(receivers).at_least(0) // self.shard

    def first_receiver(self, senders: PerDevice) -> PerDevice:
        """The first device that reads each shard if windows ascend, the last one if they descend."""
        window = self.window
        room = (senders * -self.shard + (window.length + window.shift - 1)) // window.scale * window.divisor + window.base
        if window.step > 0:
            return (room // window.step * -1).at_least(0)
        return (room // -window.step).at_most(self.count - 1)


@dataclass(frozen=True, eq=False)
class PermuteRound:
    """Edges that one permute sends, with blocks of `width` elements: the receiver and the sender of each.

    They are those for which `factor*receiver + sender` is `number`, modulo `modulus` if that is not 0. A round of each device's
    own blocks sends nothing.
    """

    exchange: WindowExchange
    width: int
    receivers: Numbers
    senders: Numbers
    factor: int
    number: int
    modulus: int = 0

    @property
    def moves(self) -> bool:
        """True if the blocks change devices."""
        return bool(self.receivers[0] != self.senders[0])

    @property
    def offset(self) -> int:
        """The distance along the group, if it is the same for all blocks; 0 if not."""
        far = self.receivers - self.senders
        return int(far[0]) if (far == far[0]).all() else 0

    @cached_property
    def taken(self) -> PerDevice:
        """Where the block of each sender begins in its shard."""
        senders = members(self.exchange.count)
        return self._piece(self.exchange.begin(self._receivers(senders), senders), self.senders)

    @cached_property
    def put(self) -> PerDevice:
        """Where the block of each receiver begins in its window; negative if a block has more elements than the receiver
        needs."""
        receivers = members(self.exchange.count)
        begin = self.exchange.begin(receivers, self._senders(receivers))
        return self._piece(begin, self.receivers) - begin

    def _piece(self, begin: PerDevice, devices: Numbers) -> PerDevice:
        """Where the block begins in the sender's shard, for a window that begins at `begin`."""
        return begin.at_least(0, devices).at_most(self.exchange.shard - self.width, devices)

    @cached_property
    def receives(self) -> PerDevice:
        """1 for each receiver, 0 for the other devices."""
        receivers = members(self.exchange.count)
        senders = self._senders(receivers)
        conditions = self.exchange.conditions(receivers, senders)
        if self.moves and self.modulus:
            conditions.append(abs(senders - receivers))
        for condition in conditions[:-1]:
            remaining = [term for term in conditions if term is not condition]
            if np.count_nonzero(np.min([term.values for term in remaining], axis=0) > 0) == len(self.receivers):
                conditions = remaining
        common = reduce(PerDevice.at_most, conditions)
        return common.at_most(1).at_least(0)

    def _senders(self, receivers: PerDevice) -> PerDevice:
        """The sender of each device's block; arbitrary if it receives none."""
        sender = receivers * -self.factor + self.number
        if not self.modulus:
            return sender
        first_sender = self.exchange.first_sender(receivers)
        return first_sender + (sender - first_sender) % self.modulus

    def _receivers(self, senders: PerDevice) -> PerDevice:
        """The receiver of each device's block; arbitrary if it sends none."""
        if not self.modulus:
            return senders + -self.number
        first_receiver = self.exchange.first_receiver(senders)
        if gcd(self.factor, self.modulus) > 1:  # each device sends to at most one
            return first_receiver
        receiver = (senders * -1 + self.number) * pow(self.factor, -1, self.modulus)
        if self.exchange.window.step > 0:
            return first_receiver + (receiver - first_receiver) % self.modulus
        return first_receiver - (first_receiver - receiver) % self.modulus


@lru_cache(maxsize=4096)
def permute_rounds(size: int, count: int, window: DeviceWindow) -> tuple[PermuteRound, ...]:
    """The rounds that give each of `count` devices its window of a dimension of `size` elements; own blocks come first."""
    exchange = WindowExchange(size, count, window)
    shard, starts = exchange.shard, window.starts(members(count)).values
    low, high = np.maximum(starts, 0), np.minimum(starts + window.length, size)
    first_sender, last_sender = low // shard, (high - 1) // shard
    edges = np.where(high > low, last_sender - first_sender + 1, 0)
    receivers = np.repeat(np.arange(count), edges)
    senders = np.arange(len(receivers)) - np.repeat(np.cumsum(edges) - edges - first_sender, edges)
    lengths = np.minimum(high[receivers], (senders + 1) * shard) - np.maximum(low[receivers], senders * shard)
    own = receivers == senders
    # A halo concatenates blocks by distance.
    factor, modulus = (-1, 0) if window.is_halo(shard) else _numbering(receivers, senders, lengths)
    numbers = factor * receivers + senders
    if modulus:
        numbers %= modulus
    groups = [(own, (-1, 0, 0))] if own.any() else []
    # A set: np.unique imports numpy.ma, 15 ms of a process's first program.
    groups += [(~own & (numbers == number), (factor, number, modulus)) for number in sorted({*numbers[~own].tolist()})]
    return tuple(
        PermuteRound(exchange, int(lengths[edges].max()), receivers[edges], senders[edges], *numbering)
        for edges, numbering in groups
    )


def _numbering(receivers: Numbers, senders: Numbers, lengths: Numbers) -> tuple[int, int]:
    """A factor and a modulus that number the edges, of these lengths, in few rounds: by distance, or the fewest that send all,
    with the shortest blocks."""
    distance = senders - receivers
    moving = distance != 0
    busiest = max(int(np.bincount(side[moving], minlength=1).max()) for side in (receivers, senders))
    if not moving.any() or np.count_nonzero(np.bincount(distance - distance.min())) <= busiest + MOST_SHIFTS:
        return -1, 0
    # Windows ascend or descend, so a device has edges with consecutive others, which distinct numbers tell apart.
    most_received, most_sent = (int(np.bincount(side).max()) for side in (receivers, senders))
    modulus = max(most_received, most_sent)
    factors = [factor for factor in range(min(modulus, _FACTORS)) if most_sent == 1 or gcd(factor, modulus) == 1]
    receivers, senders, lengths = receivers[moving], senders[moving], lengths[moving]

    def elements(factor: int) -> int:
        numbers = (factor * receivers + senders) % modulus
        widths = np.zeros(modulus, np.int64)
        np.maximum.at(widths, numbers, lengths)
        return int(widths @ np.bincount(numbers, minlength=modulus))

    return min(factors, key=elements), modulus


@lru_cache(maxsize=1 << 16)
def exchanged_bytes(rule: ShardingRule, option: Option, mesh: Mesh) -> float:
    """Bytes that one device receives, on average, in the exchanges of an op whose windows extend beyond shards.

    Dimensions of one operand are exchanged one after the other, each with the elements that earlier ones received.
    """
    total = 0.0
    local: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for exchange in rule.exchanges:
        count = mesh.group_size(option[exchange.loop])
        if count > 1:
            split = tensor_split(rule.operands[exchange.operand], option)
            shape = local.setdefault((exchange.operand, exchange.shape), list(local_shape(exchange.shape, mesh, split)))
            line = element_bytes(exchange.dtype) * prod(shape) / max(1, shape[exchange.dim])
            if isinstance(exchange.access, ShardSummaries):
                total += line * exchange.access.length * (count - 1)
            else:
                elements = 0.0 if lists_shifted(mesh) else line / element_bytes(exchange.dtype)
                total += line * _received(exchange.access, count, mesh, option[exchange.loop], elements)
                shape[exchange.dim] = exchange.access.window(count).length
    return total


@lru_cache(maxsize=1 << 14)
def _received(access: AffineAccess | CoveredAccess, count: int, mesh: Mesh, axes: Axes, line: float) -> float:
    """Elements that one of `count` devices receives, on average, per `line` of elements along the dimension; 0 stands for
    permutes that list devices, for which lines do not matter."""
    permutes = [permute for permute in permute_rounds(access.source, count, access.window(count)) if permute.moves]
    if not line:
        return sum(permute.width * len(permute.receivers) for permute in permutes) / count
    return sum(
        received(line * permute.width, mesh, axes, permute.offset) / line
        if permute.offset
        else permute.width * len(permute.receivers) / count
        for permute in permutes
    )
