"""Who sends what to whom so that every device gets its window of a split dimension: a few permutes, however many devices.

Device j of a group holds the elements from `j*shard` on. What device i reads of it is an *edge*, a run of elements. A permute
takes edges of which no two share a sender or a receiver, and sends equally many elements for each: the longest edge's.
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
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.reach import Covered, Reach, Shares, Window
from meshbridge.ops.rule import ShardingRule

MOST_SHIFTS = 4
"""Permutes by distance are taken if there are at most so many more than the busiest device's edges need: each of them sends
edges of nearly one length, and their pairs of devices are a shift along the mesh. Not measured: the bytes are the same."""

_FACTORS = 8
"""As many ways to number edges are tried."""


@dataclass(frozen=True)
class WindowRounds:
    """`count` devices hold a dimension of `size` elements in shards, and each wants its window of it."""

    size: int
    count: int
    window: Window

    @property
    def shard(self) -> int:
        """Elements of a shard."""
        return -(-self.size // self.count)

    def begin(self, receivers: PerDevice, senders: PerDevice) -> PerDevice:
        """Where a receiver's window begins, counted from the beginning of a sender's shard."""
        return self.window.starts(receivers) - senders * self.shard

    def conditions(self, receivers: PerDevice, senders: PerDevice) -> list[PerDevice]:
        """What is positive where a sender holds some of a receiver's window: all of these, and only there."""
        begin, held = self.begin(receivers, senders), senders * -self.shard + self.size
        there = [senders + 1, held, self.window.starts(receivers) * -1 + self.size]
        return [*there, begin * -1 + self.shard, begin + self.window.length]

    def first_sender(self, receivers: PerDevice) -> PerDevice:
        """The first device that holds something of each window."""
        return self.window.starts(receivers).at_least(0) // self.shard

    def first_receiver(self, senders: PerDevice) -> PerDevice:
        """The first device that wants something of each shard, where windows lead up, and the last one, where they lead down."""
        window = self.window
        room = (senders * -self.shard + (window.length + window.shift - 1)) // window.scale * window.divisor + window.base
        if window.step > 0:
            return (room // window.step * -1).at_least(0)
        return (room // -window.step).at_most(self.count - 1)


@dataclass(frozen=True, eq=False)
class SendRound:
    """Edges of which all pieces, of `width` elements, are sent at once: per edge the receiver and the sender.

    They are those of which `factor*receiver + sender` is `number`, modulo `modulus` if that is not 0. Devices keep pieces of
    their own in a round that sends nothing.
    """

    exchange: WindowRounds
    width: int
    receivers: Numbers
    senders: Numbers
    factor: int
    number: int
    modulus: int = 0

    @property
    def moves(self) -> bool:
        """Whether the pieces change devices."""
        return bool(self.receivers[0] != self.senders[0])

    @property
    def offset(self) -> int:
        """How far all pieces move along the group, if equally far; 0 otherwise."""
        far = self.receivers - self.senders
        return int(far[0]) if (far == far[0]).all() else 0

    @cached_property
    def taken(self) -> PerDevice:
        """Where the piece of each sender begins in its shard."""
        senders = members(self.exchange.count)
        return self._piece(self.exchange.begin(self._receivers(senders), senders), self.senders)

    @cached_property
    def put(self) -> PerDevice:
        """Where the piece of each receiver goes in its window: before its begin, where a piece is longer than what is needed."""
        receivers = members(self.exchange.count)
        begin = self.exchange.begin(receivers, self._senders(receivers))
        return self._piece(begin, self.receivers) - begin

    def _piece(self, begin: PerDevice, devices: Numbers) -> PerDevice:
        """Where the piece begins in the sender's shard of a window that begins there."""
        return begin.at_least(0, devices).at_most(self.exchange.shard - self.width, devices)

    @cached_property
    def receives(self) -> PerDevice:
        """1 for each receiver, 0 for the other devices."""
        receivers = members(self.exchange.count)
        senders = self._senders(receivers)
        conditions = self.exchange.conditions(receivers, senders)
        if self.moves and self.modulus:
            conditions.append(abs(senders - receivers))
        for each in conditions[:-1]:
            others = [other for other in conditions if other is not each]
            if np.count_nonzero(np.min([other.values for other in others], axis=0) > 0) == len(self.receivers):
                conditions = others
        found = reduce(PerDevice.at_most, conditions)
        return found.at_most(1).at_least(0)

    def _senders(self, receivers: PerDevice) -> PerDevice:
        """Whose piece each device receives; anyone's, if it receives none."""
        wanted = receivers * -self.factor + self.number
        if not self.modulus:
            return wanted
        first = self.exchange.first_sender(receivers)
        return first + (wanted - first) % self.modulus

    def _receivers(self, senders: PerDevice) -> PerDevice:
        """Who receives the piece of each device; anyone, if it sends none."""
        if not self.modulus:
            return senders + -self.number
        first = self.exchange.first_receiver(senders)
        if gcd(self.factor, self.modulus) > 1:  # each device sends to one at most
            return first
        wanted = (senders * -1 + self.number) * pow(self.factor, -1, self.modulus)
        if self.exchange.window.step > 0:
            return first + (wanted - first) % self.modulus
        return first - (first - wanted) % self.modulus


@lru_cache(maxsize=4096)
def rounds(size: int, count: int, window: Window) -> tuple[SendRound, ...]:
    """The rounds that give each of `count` devices its window of a dimension of `size` elements; own pieces come first."""
    exchange = WindowRounds(size, count, window)
    shard, starts = exchange.shard, window.starts(members(count)).values
    low, high = np.maximum(starts, 0), np.minimum(starts + window.length, size)
    first, last = low // shard, (high - 1) // shard
    edges = np.where(high > low, last - first + 1, 0)
    receivers = np.repeat(np.arange(count), edges)
    senders = np.arange(len(receivers)) - np.repeat(np.cumsum(edges) - edges - first, edges)
    lengths = np.minimum(high[receivers], (senders + 1) * shard) - np.maximum(low[receivers], senders * shard)
    own = receivers == senders
    # The pieces of a halo are put together by distance.
    factor, modulus = (-1, 0) if window.is_halo(shard) else _numbering(receivers, senders, lengths)
    numbers = factor * receivers + senders
    if modulus:
        numbers %= modulus
    found = [(own, (-1, 0, 0))] if own.any() else []
    # A set: np.unique imports numpy.ma, 15 ms of a process's first program.
    found += [(~own & (numbers == number), (factor, number, modulus)) for number in sorted({*numbers[~own].tolist()})]
    return tuple(
        SendRound(exchange, int(lengths[edges].max()), receivers[edges], senders[edges], *numbering) for edges, numbering in found
    )


def _numbering(receivers: Numbers, senders: Numbers, lengths: Numbers) -> tuple[int, int]:
    """The factor and the modulus of a few rounds of the edges, which are as long as `lengths`: by distance, or the fewest that
    bring all, in which the pieces are shortest."""
    distance = senders - receivers
    moving = distance != 0
    busiest = max(int(np.bincount(side[moving], minlength=1).max()) for side in (receivers, senders))
    if not moving.any() or np.count_nonzero(np.bincount(distance - distance.min())) <= busiest + MOST_SHIFTS:
        return -1, 0
    # Windows lead up or down, so the edges of one device are with consecutive others: units number those apart.
    received, sent = (int(np.bincount(side).max()) for side in (receivers, senders))
    most = max(received, sent)
    factors = [factor for factor in range(min(most, _FACTORS)) if sent == 1 or gcd(factor, most) == 1]
    receivers, senders, lengths = receivers[moving], senders[moving], lengths[moving]

    def elements(factor: int) -> int:
        numbers = (factor * receivers + senders) % most
        widths = np.zeros(most, np.int64)
        np.maximum.at(widths, numbers, lengths)
        return int(widths @ np.bincount(numbers, minlength=most))

    return min(factors, key=elements), most


@lru_cache(maxsize=1 << 16)
def exchanged_bytes(rule: ShardingRule, option: Option, mesh: Mesh) -> float:
    """Bytes that one device receives, on average, while an op runs whose windows reach over the edges of shards.

    Dimensions of one operand are exchanged one after the other, each with what has arrived along the ones before.
    """
    total = 0.0
    local: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for each in rule.exchanges:
        count = mesh.group_size(option[each.loop])
        if count > 1:
            split = tensor_split(rule.operands[each.operand], option)
            shape = local.setdefault((each.operand, each.shape), list(local_shape(each.shape, mesh, split)))
            line = element_bytes(each.dtype) * prod(shape) / max(1, shape[each.dim])
            if isinstance(each.reach, Shares):
                total += line * each.reach.length * (count - 1)
            else:
                elements = 0.0 if lists_shifted(mesh) else line / element_bytes(each.dtype)
                total += line * _received(each.reach, count, mesh, option[each.loop], elements)
                shape[each.dim] = each.reach.window(count).length
    return total


@lru_cache(maxsize=1 << 14)
def _received(reach: Reach | Covered, count: int, mesh: Mesh, axes: Axes, line: float) -> float:
    """Elements that one of `count` devices receives, on average over the group, per line of so many along the dimension; 0 where
    permutes list devices, and lines do not matter."""
    moving = [each for each in rounds(reach.source, count, reach.window(count)) if each.moves]
    if not line:
        return sum(each.width * len(each.receivers) for each in moving) / count
    return sum(
        received(line * each.width, mesh, axes, each.offset) / line if each.offset else each.width * len(each.receivers) / count
        for each in moving
    )
